from tests.remembered import answers_are_kept as answers_are_kept
