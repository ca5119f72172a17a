"""Listing tours: a plan becomes scenes, an avatar and a voice-over, and those become one video.

Workers import `actors.tour.jobs`, which registers the job types; an app calls `actors.tour.render.start`.
"""
