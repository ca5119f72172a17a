"""The only place that speaks HTTP to providers; knows neither store nor actors."""
