package objectstoretest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

func checkInvalidKeys(h *harness, b objectstore.Bucket) {
	h.putText(b, "there", "x")
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "./a", "../a", "a\x00b", "a\nb", "a\x7f", "\xff",
		strings.Repeat("a", 256), strings.Repeat("a/", 512) + "b",
	} {
		_, err := b.Put(h.Context(), key, strings.NewReader(""), 0, objectstore.Condition{})
		h.wantKind(fmt.Sprintf("Put of %.20q", key), err, atoll.ErrInvalid)
		_, _, err = b.Get(h.Context(), key, 0, -1)
		h.wantKind(fmt.Sprintf("Get of %.20q", key), err, atoll.ErrInvalid)
		_, err = b.Stat(h.Context(), key)
		h.wantKind(fmt.Sprintf("Stat of %.20q", key), err, atoll.ErrInvalid)
		err = b.Delete(h.Context(), h.prefix+"there", key)
		h.wantKind(fmt.Sprintf("Delete of %.20q", key), err, atoll.ErrInvalid)
		if key == "" {
			continue
		}
		for o, err := range b.List(h.Context(), h.prefix+"no/"+key) {
			h.Errorf("List of %.20q: %+v, %v", key, o, err)
		}
	}
	h.wantText(b, "there", "x")
	_, err := b.Put(h.Context(), h.prefix+"k", strings.NewReader("x"), 1, objectstore.Condition{Absent: true, Tag: "x"})
	h.wantKind("Put if it is absent and has a tag", err, atoll.ErrInvalid)
	_, err = b.Put(h.Context(), h.prefix+"k", strings.NewReader("x"), -1, objectstore.Condition{})
	h.wantKind("Put of less than nothing", err, atoll.ErrInvalid)
}

// oddKeys are sorted by their bytes.
func oddKeys() []string {
	long := strings.Repeat("l", 254)
	keys := []string{
		"-leading dash", "--", " space ", "plus+plus", "per%cent", "%2f", "%41", "quo'te\"s", "<&>;", "back\\slash", "ü/日本/🐦",
		"e\u0301 and é", "Upper", "upper", "UPPER", ".dot", ".dot.", "trailing.", "...", "con", "con.txt", "nul/aux", "com1", "COM1", "~tilde",
		"a?b=c#d", "a:b", "a*b", "a|b", "$(x)`y`", "{}[]^", "=,@!", "star/*", "under_score", "latest+object", "latest+low/x", "\u2028",
		"\ufffd", "\U0010ffff", "+lock/00", "+temporary/x",
		long + "a", long + "-", long + "~", long + "0/" + long + "1/x", strings.Repeat("ü", 127) + "-", strings.Repeat("日", 85),
		strings.Repeat("x", 120) + ".", strings.Repeat("x", 126), strings.Repeat("x", 126) + "-", strings.Repeat("x", 126) + "0/y",
		strings.Repeat("x", 126) + "y", strings.Repeat("x", 120) + "0/y",
	}
	slices.Sort(keys)
	return keys
}

func checkOddKeys(h *harness, b objectstore.Bucket) {
	keys := oddKeys()
	for _, key := range keys {
		h.putText(b, key, "of "+key)
	}
	for _, key := range keys {
		h.wantText(b, key, "of "+key)
	}
	got := h.listKeys(b, "")
	for i := range max(len(got), len(keys)) {
		if i >= len(got) || i >= len(keys) || got[i] != keys[i] {
			h.Fatalf("List: from the %dth on %q, want %q", i, got[min(i, len(got)):], keys[min(i, len(keys)):])
		}
	}
	for _, key := range keys { // each is a prefix, too
		want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !strings.HasPrefix(k, key) })
		if got := h.listKeys(b, key); !slices.Equal(got, want) {
			h.Errorf("List of %q: %q, want %q", key, got, want)
		}
	}
	some := keys[:len(keys)/2]
	var full []string
	for _, key := range some {
		full = append(full, h.prefix+key)
	}
	if err := b.Delete(h.Context(), full...); err != nil {
		h.Errorf("Delete: %v", err)
	}
	for _, key := range keys[len(some):] {
		if err := b.Delete(h.Context(), h.prefix+key); err != nil {
			h.Errorf("Delete: %v", err)
		}
	}
	if got := h.listKeys(b, ""); len(got) > 0 {
		h.Errorf("after Delete: %q", got)
	}
}

func checkNestedKeys(h *harness, b objectstore.Bucket) {
	keys := []string{"a", "a-b", "a.b", "a/b", "a/b/c", "a/b0", "a0", "ab"}
	long := strings.Repeat("l", 200)
	for _, tail := range []string{"", "-", "-/x", "/x", "0", "0/x"} {
		keys = append(keys, long[:126]+tail, long+tail)
	}
	slices.Sort(keys)
	for _, key := range keys {
		h.putText(b, key, key)
	}
	if got := h.listKeys(b, ""); !slices.Equal(got, keys) {
		h.Errorf("List: %q, want %q", got, keys)
	}
	if err := b.Delete(h.Context(), h.prefix+"a/b"); err != nil {
		h.Errorf("Delete: %v", err)
	}
	h.wantText(b, "a/b", "")
	for _, key := range []string{"a", "a/b/c"} {
		h.wantText(b, key, key)
	}
}
