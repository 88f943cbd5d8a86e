"""Where runs are stored: spelling, writing whole or not at all, the early test, retries, and secrets."""

from __future__ import annotations

import logging
import os
import pickle
import time
from pathlib import Path

import pytest

from tests.storage.helpers import S3, folder_with
from turnout.errors import StorageError
from turnout.filesystem import redacted, resolve_uri
from turnout.retry import RetryPolicy
from turnout.storage.location import StorageLocation, remove_tree
from turnout.testing.faults import Fault, InjectedError, armed


def test_every_spelling_of_a_local_path_names_the_same_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.fs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spelled: list[tuple[str | Path, object]] = [
        ("results", None),
        ("~/results/", None),
        (tmp_path / "results", None),
        (f"{tmp_path}/results/", None),
        (f"file://{tmp_path}/results", None),
        (f"{tmp_path}/results", pyarrow.fs.LocalFileSystem()),
    ]
    assert {StorageLocation.open(path, filesystem) for path, filesystem in spelled} == {
        StorageLocation(str(tmp_path / "results"))
    }


def test_files_are_put_read_listed_renamed_and_deleted_on_every_storage(storage: StorageLocation) -> None:
    folder = storage / "folder"
    folder.make_folder()
    (folder / "a b ü.txt").put(b"one")
    (folder / "a b ü.txt").put(b"two")
    (folder / "inner/b").parent.make_folder()
    (folder / "inner/b").put(b"")
    assert (folder / "a b ü.txt").read() == b"two"
    assert (folder / "none").read() is None
    assert (folder / "none/none").size() is None
    assert ((folder / "a b ü.txt").size(), (folder / "inner/b").size()) == (3, 0)
    assert [e.path for e in folder.listing(recursive=True) if not e.is_folder] == ["a b ü.txt", "inner/b"]
    assert [e.path for e in folder.listing()] == ["a b ü.txt", "inner"]
    assert folder.is_folder()
    assert not (folder / "inner/b").is_folder()
    folder.rename(storage / "renamed")
    assert not folder.exists()
    assert (storage / "renamed/a b ü.txt").read() == b"two"
    (storage / "renamed/inner/b").delete()
    (storage / "renamed/inner/b").delete()
    (storage / "renamed").delete_tree()
    (storage / "renamed").delete_tree()
    assert (storage / "renamed").listing() == []


def test_a_location_pickles_and_equals_its_copy(storage: StorageLocation) -> None:
    if storage.kind == "memory":
        pytest.skip("fsspec's memory lives in one process")
    (storage / "file").parent.make_folder()
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)


def test_only_one_of_two_creates_exclusively(storage: StorageLocation) -> None:
    storage.make_folder()
    assert (storage / "lease").create_exclusive(b"first")
    assert not (storage / "lease").create_exclusive(b"second")
    assert (storage / "lease").read() == b"first"


@pytest.mark.parametrize("point", ["put.write", "put.before_rename"])
def test_a_put_that_fails_leaves_what_was_there(tmp_path: Path, point: str) -> None:
    place = StorageLocation.open(tmp_path) / "file"
    place.put(b"old")
    with (
        armed(Fault(point=point, action="enospc")),
        pytest.raises(StorageError, match=r"3 bytes are needed, \d+ bytes"),
    ):
        place.put(b"new")
    assert place.read() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_writable_storage_passes_and_keeps_nothing_of_the_test(storage: StorageLocation) -> None:
    storage.check_writable()
    assert storage.listing() == []


def test_a_file_where_a_folder_is_meant_is_refused(storage: StorageLocation) -> None:
    storage.make_folder()
    (storage / "file").put(b"x")
    for place in (storage / "file", storage / "file/below"):
        if storage.is_local or place.name == "file":
            with pytest.raises(StorageError, match=r"file.*a file stands where a folder is meant"):
                place.check_writable()


def test_a_folder_that_cannot_be_written_is_refused_with_its_path() -> None:
    with pytest.raises(StorageError, match=r"/proc/turnout-results: cannot write there"):
        StorageLocation.open("/proc/turnout-results").check_writable()


def test_a_missing_bucket_is_refused_within_seconds(s3: S3) -> None:
    begin = time.monotonic()
    with pytest.raises(StorageError, match=r"no-such-bucket/runs.*(?i:bucket)"):
        StorageLocation.open(s3.uri("no-such-bucket/runs")).check_writable()
    assert time.monotonic() - begin < 10


def test_a_wrong_key_is_refused_at_once_and_names_no_secret(
    s3: S3, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    s3.mood(deny=True)
    begin = time.monotonic()
    location = StorageLocation.open(s3.uri(f"{bucket}/runs", user="AKIAWRONGWRONGWRONG1:sup3rs3cret@"))
    with pytest.raises(StorageError, match=f"{bucket}/runs") as caught:
        location.check_writable()
    assert time.monotonic() - begin < 10
    cause: BaseException | None = caught.value
    told = [repr(location), str(location), caplog.text]
    while cause is not None:
        told.append(str(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    assert not any("sup3rs3cret" in text or "AKIAWRONG" in text for text in told)


def test_an_endpoint_that_nobody_answers_at_fails_within_seconds(s3: S3) -> None:
    begin = time.monotonic()
    uri = "s3://bucket/runs?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:1"
    with pytest.raises(StorageError, match="bucket/runs"):
        StorageLocation.open(uri).check_writable()
    assert time.monotonic() - begin < 20


def test_a_storage_that_fails_and_then_works_is_tried_again_and_says_so(
    s3: S3, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = RetryPolicy(deadline_s=30, first_delay_s=0.01, longest_delay_s=0.05)
    place = StorageLocation.open(s3.uri(f"{bucket}/runs"), retry=policy) / "file"
    s3.mood(fail=5, method="PUT")
    place.put(b"kept")
    s3.mood(fail=5, method="GET")
    assert place.read() == b"kept"
    assert "again in" in caplog.text


def test_a_storage_that_keeps_failing_ends_in_an_error_that_names_the_path() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise InjectedError("the network is gone")

    policy = RetryPolicy(deadline_s=0.2, first_delay_s=0.01, longest_delay_s=0.02)
    with pytest.raises(InjectedError, match="gone"):
        policy.call(fail, "write", "s3://bucket/file")
    assert len(calls) > 2


def test_a_slow_storage_is_waited_for_and_named(s3: S3, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    place = StorageLocation.open(s3.uri(f"{bucket}/runs"), retry=RetryPolicy(slow_s=0.3)) / "file"
    s3.mood(delay_s=0.4, method="PUT")
    place.put(b"x")
    assert "the storage is slow" in caplog.text
    assert f"{bucket}/runs/file" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA1234567890ABCDEF:hidden@bucket/x",
        "s3://user:hidden@bucket/x?scheme=http",
        "https://host/path?token=hidden&x=1",
        "secret_key=hidden",
        "{'secret_access_key': 'hidden', 'a': 1}",
        "AWS_SECRET_ACCESS_KEY=hidden",
        "password: hidden",
        "the key AKIAHIDDENHIDDENHIDD is unknown",
        "X-Amz-Signature=hidden",
        "account_key=hidden==",
    ],
)
def test_no_secret_is_shown(text: str) -> None:
    assert "hidden" not in redacted(text).lower()


def test_what_is_no_secret_is_shown() -> None:
    text = "s3://bucket/folder/file.txt: AWS Error NO_SUCH_BUCKET during PutObject: not found (HTTP status 404)"
    assert redacted(text) == text


def test_an_unknown_scheme_is_refused_without_its_secrets() -> None:
    with pytest.raises(StorageError, match="no filesystem is known for nope://") as caught:
        resolve_uri("nope://user:hidden@host/path?key=hidden")
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_interrupt_while_a_folder_is_removed_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with(tmp_path / "folder" / "inner", {"file": b""})
    close = os.close

    def close_and_be_interrupted(handle: int) -> None:
        monkeypatch.setattr(os, "close", close)
        close(handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", close_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        remove_tree(str(tmp_path / "folder"))
