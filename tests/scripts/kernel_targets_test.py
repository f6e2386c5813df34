"""scripts/kernel_targets.py: which rows of a benchmark stand beside which target."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/kernel_targets.py"
ROWS = """kernel,status,us_median,shape
mhc_pre,ok,7.0,T=8;n=4;D=4096;Q=24
mhc_pre,ok,9.0,T=8;n=4;D=7168;Q=28
mhc_post,wrong,,T=8;D=4096;n=4
nvfp4_group_gemm,ok,113,R=48;K=4096;E=256;N=4096;E1=257
nvfp4_group_gemm,ok,60,R=48;K=2048;E=256;N=4096;E1=257
nvfp4_group_gemm,ok,13,R=48;K=1024;E=256;N=4096;E1=257
"""


class Table(unittest.TestCase):
    def test_rows_are_found_by_their_shapes_and_parts_added(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "all_kernels.csv").write_text(ROWS)
            out = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=True).stdout
        self.assertIn("24 x 16384 fp32) | 8 tokens | 7.00 | 3.50 | 2.00 |", out)
        self.assertIn("| V4-Flash mHC post | 8 tokens | wrong | 3.50 | - |", out)
        self.assertIn("(W4A8) | 8 tokens | 173.00 | 173 | 1.00 |", out)
        self.assertIn("(W4A8) | 32 tokens | no row | 531 | - |", out)


if __name__ == "__main__":
    unittest.main()
