"""An uploader, run for each hour, for example by cron: it puts the sales of an hour into a folder.

It knows nothing of lowwater. The shell promises, if it has ended well: nothing older will come.
    python examples/jobs/upload.py 09 && lowwater promise sales --until 2013-01-09T10:00Z
    python examples/jobs/upload.py 10 &&
        lowwater promise sales --until 2013-01-09T11:00Z --after 2013-01-09T10:00Z
The first promise stands for all files that are there already: promise up to where they are whole.
With `--after` nothing is promised when the hour before is missing, because its upload failed.
"""

import json
import os
import sys
from pathlib import Path

FOLDER = Path("filter_files/in")

if __name__ == "__main__":
    hour = sys.argv[1]
    sales = [
        {"shop": shop, "at": f"2013-01-09T{hour}:40:00Z", "cents": cents} for shop, cents in (("a", 20), ("b", 700))
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)  # not synced into its parent: make a real one beforehand
    part = FOLDER.parent / f"{hour}.part"
    with part.open("w") as file:
        file.write("".join(json.dumps(sale) + "\n" for sale in sales))
        file.flush()
        os.fsync(file.fileno())  # what is promised must survive a power cut: sync the file,
    part.rename(FOLDER / f"{hour}.json")  # show it whole, because Spark reads every file that it sees,
    folder = os.open(FOLDER, os.O_RDONLY)
    os.fsync(folder)  # and sync the folder, which has its name
    os.close(folder)
