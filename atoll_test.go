package atoll

import (
	"strings"
	"testing"
)

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		id := NewID()
		if n, err := NormalizeID(id); n != id || err != nil || seen[id] || id[12] != '4' {
			t.Errorf("NewID() = %q; normalised %q, %v", id, n, err)
		}
		seen[id] = true
	}
	for in, want := range map[string]string{
		"":                                      "",
		"6f9619ff8b864011b42d00cf4fc964ff":      "6f9619ff8b864011b42d00cf4fc964ff",
		"6F9619FF8B864011B42D00CF4FC964FF":      "6f9619ff8b864011b42d00cf4fc964ff",
		"6f9619ff-8b86-4011-b42d-00cf4fc964ff":  "6f9619ff8b864011b42d00cf4fc964ff",
		"6f9619ff-8b864011-b42d-00cf4fc964ff":   "error",
		"6f9619ff8b864011-b42d-00cf-4fc964ffaa": "error",
		"6f9619ff8b864011b42d00cf4fc964fg":      "error",
		"{6f9619ff8b864011b42d00cf4fc964ff}":    "error",
		"web":                                   "error",
	} {
		got, err := NormalizeID(in)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("NormalizeID(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestTempNames(t *testing.T) {
	a, b := TempName(), TempName()
	if a == b {
		t.Errorf("TempName gave %q twice", a)
	}
	for name, want := range map[string]bool{a: true, b: true, "": false, a[1:]: false, a + "x": false, ".atoll-tmp-notes": false, "dir/" + a: false, strings.ToUpper(a): false} {
		if got := IsTempName(name); got != want {
			t.Errorf("IsTempName(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestIsNewID(t *testing.T) {
	for range 100 {
		if id := NewID(); !IsNewID(id) {
			t.Fatalf("IsNewID(%q) = false for an id of NewID", id)
		}
	}
	id := NewID()
	last := byte('0')
	if id[31] == '0' {
		last = '1'
	}
	for _, id := range []string{"", "web", "6f9619ff8b864011b42d00cf4fc964ff", id[:31], id + "0", id[:31] + string(last)} {
		if IsNewID(id) {
			t.Errorf("IsNewID(%q) = true for an id that NewID has not made", id)
		}
	}
}
