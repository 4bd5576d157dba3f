"""What a user reads when something is wrong."""

from spotd.base.errors import ExitCode, InputError, Problem, UserError, nearest, suggest


def test_every_user_error_says_what_to_try() -> None:
    error = UserError("the socket is busy", "stop the other daemon", ExitCode.UNREACHABLE)
    assert str(error) == "the socket is busy\ntry: stop the other daemon"
    assert error.exit_code == 6


def test_an_input_error_lists_all_problems_in_the_order_of_the_input() -> None:
    later = Problem("run", "is missing", "write it", line=9)
    sooner = Problem("num_nodes", "must be more than 0", line=2)
    error = InputError("the file cannot be used:", [later, sooner], "correct it")
    assert str(error).splitlines() == [
        "the file cannot be used:",
        "  line 2: num_nodes: must be more than 0",
        "  line 9: run: is missing (fix: write it)",
        "try: correct it",
    ]
    assert error.exit_code is ExitCode.USAGE


def test_nearest_ignores_case_and_gives_up_on_strangers() -> None:
    assert nearest("a100", ["H100", "A100"]) == "A100"
    assert nearest("zone", ["accelerators", "run"]) == ""
    assert suggest("acelerators", ["accelerators", "run"]) == "did you mean 'accelerators'?"
    assert suggest("zzz", ["b", "a"]) == "known here: a, b"
