package atoll

import (
	"strings"
	"testing"
)

// A directory of the cache below another would be a link in what a link leads to.
func TestCacheDirs(t *testing.T) {
	dirs := CacheDirs()
	for _, a := range dirs {
		if !ValidCachePath(a) {
			t.Errorf("%q is no cache path", a)
		}
		for _, b := range dirs {
			if strings.HasPrefix(b, a+"/") {
				t.Errorf("%q is below %q", b, a)
			}
		}
	}
	dirs[0] = "changed"
	if CacheDirs()[0] == "changed" {
		t.Error("a change of the list changed it for all")
	}
}
