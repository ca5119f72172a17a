"""What Postgres itself says a schema is, as text, so that two databases can be compared."""

import sqlalchemy as sa

_COLUMNS = """
select c.relname::text || '.' || a.attname,
  concat_ws(' ', format_type(a.atttypid, a.atttypmod), case when a.attnotnull then 'not null' else 'null' end,
    'default ' || pg_get_expr(d.adbin, d.adrelid), 'identity ' || nullif(a.attidentity::text, ''),
    'generated ' || nullif(a.attgenerated::text, ''), 'collate ' || nullif(a.attcollation, 0)::regcollation::text)
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relnamespace = to_regnamespace(:schema) and c.relkind in ('r', 'p') and c.relname <> 'alembic_version'
"""
# Not-null constraints are rows of their own since 18; the columns above already tell.
_CONSTRAINTS = """
select conrelid::regclass::text || ' ' || conname, pg_get_constraintdef(oid)
from pg_constraint
where connamespace = to_regnamespace(:schema) and conrelid <> 0 and contype <> 'n'
  and conrelid is distinct from to_regclass(:schema || '.alembic_version')
"""
_INDEXES = """
select indexrelid::regclass::text,
  pg_get_indexdef(indexrelid) || case when indisvalid then '' else ' INVALID' end
from pg_index join pg_class on pg_class.oid = indexrelid
where relnamespace = to_regnamespace(:schema)
  and indrelid is distinct from to_regclass(:schema || '.alembic_version')
"""
_ENUMS = """
select typname, string_agg(enumlabel, ', ' order by enumsortorder)
from pg_type join pg_enum on enumtypid = pg_type.oid
where typnamespace = to_regnamespace(:schema)
group by typname
"""
_KINDS = {"column": _COLUMNS, "constraint": _CONSTRAINTS, "index": _INDEXES, "enum": _ENUMS}

Description = dict[str, str]


def describe(engine: sa.Engine, schema: str) -> Description:
    """Every column, constraint, index and enum of the schema by kind and name, with its definition."""
    with engine.connect() as connection:
        return {
            f"{kind} {name}": definition
            for kind, query in _KINDS.items()
            for name, definition in connection.execute(sa.text(query), {"schema": schema})
        }


def differences(expected: Description, actual: Description) -> list[str]:
    """One line for each thing that is not the same, readable in a test's failure."""
    return [
        f"{thing}: expected {expected.get(thing)}, found {actual.get(thing)}"
        for thing in sorted(expected.keys() | actual.keys())
        if expected.get(thing) != actual.get(thing)
    ]
