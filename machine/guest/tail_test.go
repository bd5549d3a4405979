package guest

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// The guest's own lines are not part of the main process's output.
func TestTail(t *testing.T) {
	const begins, ends = "\natoll-guest: {\"begins\":true}\n", "\natoll-guest: {\"reason\":\"idle\"}\n"
	for _, tt := range []struct{ name, log, want, reason string }{
		{"nothing", "", "", ""},
		{"without a guest", "a\nb", "a\nb", ""},
		{"a whole line", begins + "a\n" + ends, "a\n", "idle"},
		{"an unfinished line", begins + "a\nb" + ends, "a\nb", "idle"},
		{"empty lines", begins + "\n\n" + ends, "\n\n", "idle"},
		{"no output", begins + ends, "", "idle"},
		{"a run before", begins + "old\n" + ends + begins + "new\n", "new\n", ""},
		{"the end of a run before", "old" + ends + begins + "new", "new", ""},
		{"something like it", begins + "atoll-guest: hello\n", "atoll-guest: hello\n", ""},
	} {
		var got Tail
		for line := range strings.Lines(tt.log) {
			got.Add([]byte(line))
		}
		if string(got.data) != tt.want || got.written != int64(len(tt.want)) || got.report.Reason != tt.reason {
			t.Errorf("%s: %q of %d bytes, reason %q; want %q, reason %q", tt.name, got.data, got.written, got.report.Reason, tt.want, tt.reason)
		}
	}
	var long Tail
	for range 3 {
		long.Add(make([]byte, atoll.DefaultOutputLimit/2+1))
	}
	if st := long.Status(); len(long.Kept()) != atoll.DefaultOutputLimit || st.Written-st.Oldest != int64(atoll.DefaultOutputLimit) || st.Written != 3*(int64(atoll.DefaultOutputLimit)/2+1) {
		t.Errorf("of a long one %+v", st)
	}
}

// Of very many lines the last ones are kept, and none is moved for each that comes.
func TestTailOfManyLines(t *testing.T) {
	var many Tail
	const lines = 3 << 20
	for i := range lines {
		many.Add([]byte{'a' + byte(i%26), '\n'})
	}
	kept := many.Kept()
	if st := many.Status(); st.Written != 2*lines || len(kept) != atoll.DefaultOutputLimit {
		t.Errorf("of %d bytes %d are kept", st.Written, len(kept))
	}
	for i := range len(kept) / 2 {
		if want := 'a' + byte((lines-len(kept)/2+i)%26); kept[2*i] != want || kept[2*i+1] != '\n' {
			t.Fatalf("line %d of what is kept is %q, want %q", i, kept[2*i:2*i+2], want)
		}
	}
}
