"""Write examples/chat_sums.parquet, the data of chat_sums.yaml: sums as lists of chat messages.

pip install -c constraints.txt -e '.[data]'
python examples/chat_sums.py
"""

from pathlib import Path

from datasets import Dataset

SYSTEM = {"role": "system", "content": "You are a calculator. Reply with one number."}


def main() -> None:
    """All sums of two digits."""
    pairs = [(first, second) for first in range(10) for second in range(10)]
    rows = [
        {
            "messages": [SYSTEM, {"role": "user", "content": f"{first} + {second} = ?"}],
            "answer": first + second,
            "carries": first + second > 9,
        }
        for first, second in pairs
    ]
    Dataset.from_list(rows).to_parquet(Path(__file__).with_suffix(".parquet"))


if __name__ == "__main__":
    main()
