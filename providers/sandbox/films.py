"""Films and speech the sandbox makes itself where a script asks for them: as long as was ordered, or as it says.

Made by FFmpeg when first fetched (the extra `tour` brings it), in colours that come from the task id, which stands in
the file too: a mix-up shows to the eye and in the bytes.
"""

import asyncio
import subprocess
import tempfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from providers.sandbox.script import Film

_WORDS_A_SECOND = 2.6
_LONGEST = 60.0  # seconds: a fake is no place for long films
_VOICE = "0.25*sin(2*PI*{pitch}*t+4*sin(2*PI*3*t))*(0.55+0.45*sin(2*PI*2.2*t))"
_QUIET = ("-hide_banner", "-nostdin", "-loglevel", "error", "-y", "-threads", "1")
_CODEC = ("-c:v", "libx264", "-preset", "ultrafast", "-crf", "28", "-pix_fmt", "yuv420p")


async def scene(task_id: str, film: Film, asked: float) -> bytes:
    """A moving picture without sound, unless the film has one."""
    return await asyncio.to_thread(_made, task_id, film, _length(film, asked), "scene")


async def avatar(task_id: str, film: Film, script: str) -> bytes:
    """A face whose mouth moves while it talks."""
    return await asyncio.to_thread(_made, task_id, film, _length(film, spoken(script)), "avatar")


async def speech(task_id: str, film: Film, text: str) -> bytes:
    """A voice without words, as MP3."""
    return await asyncio.to_thread(_made, task_id, film, _length(film, spoken(text)), "speech")


def spoken(text: str) -> float:
    """About how long a voice takes for it, in seconds."""
    return max(0.5, len(text.split()) / _WORDS_A_SECOND)


def film_of(detail: dict[str, Any]) -> Film | None:
    """What a script decided about a task when it was accepted."""
    told = detail.get("film")
    return None if told is None else Film.model_validate(told)


def _length(film: Film, asked: float) -> float:
    return min(_LONGEST, film.seconds if film.seconds is not None else asked * film.stretch)


@lru_cache(maxsize=128)
def _made(task_id: str, film: Film, seconds: float, what: str) -> bytes:
    from imageio_ffmpeg import get_ffmpeg_exe

    name = "made.mp3" if what == "speech" else "made.mp4"
    with tempfile.TemporaryDirectory(prefix="sandbox-film-") as folder:
        target = Path(folder) / name
        arguments = _arguments(task_id, film, seconds, what)
        subprocess.run(  # noqa: S603  # numbers of ours and a task id of letters and digits
            [get_ffmpeg_exe(), *_QUIET, *arguments, "-metadata", f"comment={task_id}", str(target)], check=True
        )
        return target.read_bytes()


def _arguments(task_id: str, film: Film, seconds: float, what: str) -> list[str]:
    seed = sha256(task_id.encode()).digest()
    voice = ["-f", "lavfi", "-i", f"aevalsrc='{_VOICE.format(pitch=110 + seed[0] % 90)}':s=44100:d={seconds:.3f}"]
    if what == "speech":
        return [*voice, "-b:a", "64k"]
    picture = _face(film, seed, seconds) if what == "avatar" else _room(film, seed, seconds)
    sound = film.sound if film.sound is not None else what == "avatar"
    if not sound:
        return ["-filter_complex", f"{picture}[v]", "-map", "[v]", *_CODEC]
    lag = film.sound_lag
    heard = (
        f"[0:a]{f'adelay={round(lag * 1000)},' if lag > 0 else ''}apad,atrim=end={seconds + film.sound_extra:.3f}[a]"
    )
    return [*voice, "-filter_complex", f"{picture}[v];{heard}", "-map", "[v]", "-map", "[a]", *_CODEC, "-c:a", "aac"]


def _room(film: Film, seed: bytes, seconds: float) -> str:
    """Two colours that flow into each other, and a lighter square that crosses them."""
    size = f"{film.width}x{film.height}"
    if film.black:
        return f"color=black:s={size}:r={film.rate}:d={seconds:.3f},format=yuv420p"
    one, other = seed[1:4].hex(), seed[4:7].hex()
    side = film.height // 3
    colours = f"gradients=s={size}:r={film.rate}:d={seconds:.3f}:c0=0x{one}:c1=0x{other}:n=2:seed={seed[7]}:speed=0.03"
    square = f"color=0x{seed[8:11].hex()}:s={side}x{side}:r={film.rate}:d={seconds:.3f}"
    moving = f"{colours}[room];{square}[square];[room][square]overlay=x='mod(W/4*t\\,W)':y=H/3"
    return f"{moving},loop=loop=-1:size=1:start=0,trim=end={seconds:.3f}" if film.frozen else moving


def _face(film: Film, seed: bytes, seconds: float) -> str:
    size = f"{film.width}x{film.height}"
    background, skin = seed[1:4].hex(), "f1c9a5"
    still = ",".join(
        (
            f"color=0x{background}:s={size}:r={film.rate}:d={seconds:.3f}",
            f"drawbox=x=iw*0.3:y=ih*0.12:w=iw*0.4:h=ih*0.68:color=0x{skin}:t=fill",
            "drawbox=x=iw*0.38:y=ih*0.3:w=iw*0.07:h=ih*0.1:color=0x202020:t=fill",
            "drawbox=x=iw*0.55:y=ih*0.3:w=iw*0.07:h=ih*0.1:color=0x202020:t=fill",
            f"drawbox=x=iw*0.2:y=ih*0.8:w=iw*0.6:h=ih*0.2:color=0x{seed[4:7].hex()}:t=fill",
        )
    )
    mouth = "drawbox=x=iw*0.42:y=ih*{y}:w=iw*0.16:h=ih*{h}:color=0x802020:t=fill:enable='{when}'"
    closed = mouth.format(y="0.62", h="0.03", when="gte(mod(t\\,0.4)\\,0.2)")
    opened = mouth.format(y="0.58", h="0.12", when="lt(mod(t\\,0.4)\\,0.2)")
    return f"{still},{closed},{opened}"
