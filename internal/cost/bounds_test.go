package cost_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

// table has the bounds of what one task costs: a case a line (kinds_test.go says what is done), a figure a column (figures_test.go says of
// what). A bound is a little above what was measured. For calls, trips, statements and rows that is 5 %, so that one statement more for a
// task or a batch does not fit; but in the case leased calls, trips and statements may be twice as many, as it depends on the machine how
// many tasks end together. It is 15 % for buffers, WAL and allocations, which differ between versions of PostgreSQL and Go. Looks come by
// the clock, and may be 20 times as many. To change the bounds: go test ./internal/cost -v -bounds prints a table to put here.
const table = `
case               looks      calls      trips statements      inner       rows    buffers        wal     allocs      bytes
enqueue                0       3.15        4.2       3.15        2.1       1.05       8.65        482       69.3       2820
enqueue-1000           0    0.00315     0.0042    0.00315     0.0021    0.00105       6.95        335      0.956        167
tx                  1.14       5.27       5.27       14.8       7.36       3.16       26.5        633        309      17300
tx+insert           0.54       6.32       7.37       15.8       7.36       4.21       27.6        716        333      18200
batch-100          0.014     0.0536      0.054      0.149     0.0631       1.08       9.29        151       14.7       1690
batch-1000        0.0064    0.00567    0.00584     0.0152    0.00633       1.06       9.33        144       11.9       1360
leased-1            0.82       6.32       8.42       6.31       2.11       2.11         28        928        244      13500
leased             0.128      0.372      0.497      0.372       0.15       2.11       23.7        619       50.9       4070
`

// parseBounds reads the table.
func parseBounds(t *testing.T) map[string]figures {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if want := append([]string{"case"}, names...); strings.Join(strings.Fields(lines[0]), " ") != strings.Join(want, " ") {
		t.Fatalf("the columns are %q, want %q", lines[0], want)
	}
	bounds := map[string]figures{}
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		if len(cells) != 1+len(names) {
			t.Fatalf("%q: %d cells, want %d", line, len(cells), 1+len(names))
		}
		var row figures
		for i, cell := range cells[1:] {
			f, err := strconv.ParseFloat(cell, 64)
			if err != nil || math.IsNaN(f) {
				t.Fatalf("%q: %q is no number", line, cell)
			}
			*row.column(i) = f
		}
		bounds[cells[0]] = row
	}
	return bounds
}
