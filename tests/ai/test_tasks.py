"""AI tasks through real workers: each task at each kind, what is repaired, what is tried again and what is not."""

from tests.ai.conftest import CHOICES, Tasks
from tests.ai.kit import CREDITS

FIELDS = [
    {"name": "city", "type": "text"},
    {"name": "price", "type": "number"},
    {"name": "sold", "type": "boolean"},
    {"name": "sort", "type": "enum", "values": ["house", "flat"]},
]


def test_every_task_comes_home_from_every_sort_of_model(tasks: Tasks) -> None:
    fleet, asked = tasks.fleet, {}
    for model in ("small", "large", "other"):
        one = tasks.classify("Lovely.", model=model)
        many = fleet.submit("priced", task="classify_many", text="Lovely?", choices=CHOICES, model=model)
        data = fleet.submit("priced", task="extract_data", text="A flat in Bonn.", fields=FIELDS, model=model)
        words = fleet.submit("ai-task", task="generate_text", prompt="Write.", model=model)
        asked[model] = (one, many, data, words)
    tasks.work()
    assert fleet.until_done() == {"completed": 12}
    for model, (one, many, data, words) in asked.items():
        assert tasks.result(one)["output"]["choice"] in CHOICES
        assert set(tasks.result(many)["output"]["choices"]) <= set(CHOICES)
        found = tasks.result(data)["output"]
        assert isinstance(found["city"], str)
        assert isinstance(found["price"], float)
        assert isinstance(found["sold"], bool)
        assert found["sort"] in ("house", "flat")
        assert tasks.result(words)["output"]["text"]
        (call,) = tasks.calls(one)
        result = tasks.result(one)
        assert (result["profile"], result["model"], result["calls"]) == (model, call["provider_model"], 1)
        assert result["usage"]["cost_micro_usd"] == call["cost"] > 0
        assert fleet.job(one)["provider_kind"] == call["provider_kind"]
        assert fleet.charged(one) == ("committed", CREDITS)
    fleet.check()
