package pg

import "testing"

func TestArgumentsAreLiteralsInTheText(t *testing.T) {
	t.Parallel()
	args, err := driverValues([]any{1, "it's", nil, `back\slash`, true, "", "$1", "", "", "tenth"})
	if err != nil {
		t.Fatal(err)
	}
	const query = "SELECT $1, $10, $2::text, ($3), $4 || $5, $7$6"
	const want = `SELECT '1', 'tenth', 'it''s'::text, (NULL),  E'back\\slash' || 'true', '$1'''`
	if got := inline(query, args); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := inline(query, nil); got != query {
		t.Errorf("without arguments it is %s", got)
	}
}
