package dirfs_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

func TestWithin(t *testing.T) {
	dirs := []string{"/work", "/data/"}
	for name, want := range map[string]bool{
		"/work": true, "/work/a": true, "/workers": false, "/": false, "/data/a": true, "/data": true,
		"a": true, "../data/x": true, "../etc": false, "/work/../etc": false, ".": true,
	} {
		if got := dirfs.Within(dirs, "/work", name); got != want {
			t.Errorf("Within(%q) = %v", name, got)
		}
	}
}
