"""Each mutant of the list names a text that stands once in its file; whether tests kill it is `make mutants`' to see."""

import pytest

from tests.machine.budget_mutations import BUDGETS
from tests.machine.mutants import ROOT, as_written
from tests.machine.mutations import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", [*MUTANTS, *BUDGETS], ids=lambda mutant: mutant.name)
def test_the_text_to_take_away_stands_once(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    for old, new in ((mutant.old, mutant.new), *mutant.also):
        assert len(list(as_written(old).finditer(text))) == 1, old
        assert old != new
