"""Reading ratings and item tables; errors name line and column."""

import gzip

import numpy as np
import pytest

from regard.errors import DataError
from regard.interactions.ratings import add_item_info, movielens_files, read_ratings


@pytest.fixture
def write(tmp_path):
    """A function that writes a text to a file, gzipped if the name ends in .gz, and returns the path."""

    def write(text, name="ratings.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


def triples(ratings):
    return [
        (ratings.users[u], ratings.items[i], float(r))
        for u, i, r in zip(ratings.user, ratings.item, ratings.rating, strict=True)
    ]


EXPECTED = [("ann", "x", 4.0), ("bob", "x", 2.5), ("ann", "y,z", 1.0)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.csv", 'userId,movieId,rating,timestamp\nann,x,4,9\nbob,x,2.5,9\nann,"y,z",1,9\n'),
        ("r.csv.gz", 'ann,x,4\nbob,x,2.5\nann,"y,z",1\n'),
        ("r.tsv", "rating\titem\tuser\n4\tx\tann\n2.5\tx\tbob\n1\ty,z\tann\n"),
        ("r.dat", "ann::x::4::1\nbob::x::2.5::1\nann::y,z::1::1\n"),
        ("r.csv", '\ufeffuser;item;rating\r\nann;x;4\r\n\r\nbob;x;2.5\r\nann;"y,z";1\r\n'),
    ],
)
def test_tables_are_read_with_any_separator(write, name, text):
    assert triples(read_ratings([write(text, name)])) == EXPECTED


def test_columns_without_usual_names_are_reported(write):
    path = write("when,who,what,much\n1,2,3,4\n")
    assert read_ratings([path]).assumed == [
        "ratings.csv: user = column 1 'when', item = column 2 'who', rating = column 3 'what' (assumed; "
        "--user-column and others choose)"
    ]
    assert not read_ratings([path], {"user": "who", "item": "3", "rating": "4"}).assumed
    assert "user = column 1, item = column 2" in read_ratings([write("7,ann,1,4\n")]).assumed[0]
    assert not read_ratings([write("userId,movieId,rating\n1,2,3\n")]).assumed


def test_an_item_table_with_other_ids_is_an_error(write):
    ratings = read_ratings([write("user,item,rating\nann,x,4\n")])
    with pytest.raises(DataError, match=r"no item of the ratings, such as 'x', is in column 1 of .*'no'"):
        add_item_info(ratings, write("no,title\n1,A film\n", "items.csv"))


def test_columns_are_found_by_name_or_number(write):
    path = write("when,who,what,much\n1,ann,x,4\n1,bob,x,2.5\n")
    assert triples(read_ratings([path], {"user": "who", "item": "3", "rating": "Much"})) == EXPECTED[:2]
    with pytest.raises(DataError, match="no column 'whom' for the user; it has when, who, what, much"):
        read_ratings([path], {"user": "whom"})
    with pytest.raises(
        DataError, match="must be three columns, not user in column 2, item in column 2, rating in column 4"
    ):
        read_ratings([path], {"user": "who", "item": "2", "rating": "4"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "user,item,rating\nann,x,4\nbob,x,good\n",
            "line 3 of .*ratings.csv, column 3: the rating 'good' is not a number",
        ),
        (
            "user,item,rating\nann,x,4\nbob,x,nan\n",
            "line 3 of .*, column 3: the rating 'nan' is not a number",
        ),
        ("user,item,rating\nann,x,\n", "line 2 of .*, column 3: the rating '' is not a number"),
        ("user,item,rating\nann,x\n", "line 2 of .* has 2 columns but 3 are needed"),
        ("user,item,rating\n ,x,3\n", "line 2 of .*, column 1: the user is empty"),
        ("ann,x\n", "line 1 of .* has 2 columns but ratings need user, item and rating"),
        ("1,2,good\n1,2,3\n", "line 1 of .*, column 3: the rating 'good' is not a number"),
        ("user,item,rating\n", "has no ratings"),
        ('user,item,rating\nann,"x,4\n', "line 2 of .* is not a valid table row"),
    ],
)
def test_invalid_ratings_are_named_by_line_and_column(write, text, message):
    with pytest.raises(DataError, match=message):
        read_ratings([write(text)])


def test_lines_that_are_not_utf8_are_named(tmp_path):
    (tmp_path / "r.csv").write_bytes(b"user,item,rating\nann,x,4\nb\xff\xfe,x,4\n")
    with pytest.raises(DataError, match="line 3 of .*r.csv is not UTF-8"):
        read_ratings([tmp_path / "r.csv"])


def test_the_last_rating_of_a_pair_counts_with_a_warning(write):
    first = write("user,item,rating\nann,x,4\nbob,x,3\nann,x,1\n")
    result = read_ratings([first, write("bob,x,5\n", "more.csv")])
    assert triples(result) == [("ann", "x", 1.0), ("bob", "x", 5.0)]
    assert result.repeated.startswith("2 ratings repeat a pair rated before (line 4 of ")
    assert "user ann rates item x again" in result.repeated


def test_items_get_titles_and_genres_where_known(write):
    ratings = read_ratings([write("user,item,rating\nann,7,4\nann,8,3\n")])
    with_titles = add_item_info(
        ratings, write('movieId,title,genres\n9,Other,Drama\n7,"Misérables, Les",Drama|War\n', "movies.csv")
    )
    assert with_titles.titles == ["Misérables, Les", "8"]
    assert with_titles.tags == [["Drama", "War"], []]
    with pytest.raises(DataError, match="line 1 of .*bad.csv has no column named title or genres, only a, b"):
        add_item_info(ratings, write("a,b\n7,x\n", "bad.csv"))
    with pytest.raises(DataError, match="line 3 of .*short.csv has 1 columns but 3 are needed"):
        add_item_info(ratings, write("id,title,genres\n7,x,y\n8\n", "short.csv"))


def test_movielens_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    with pytest.raises(DataError, match="set REGARD_DATA"):
        movielens_files("movielens-latest-small")
    folder = tmp_path / "movielens-latest-small"
    folder.mkdir()
    (folder / "ratings.csv.gz").write_bytes(gzip.compress(b"userId,movieId,rating\n1,2,3\n"))
    (folder / "movies.csv").write_text("movieId,title,genres\n2,T,A\n", encoding="utf-8")
    assert np.isclose(read_ratings([movielens_files("movielens-latest-small")[0]]).rating, 3).all()
