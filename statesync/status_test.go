package statesync_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/statesync"
)

func TestStatus(t *testing.T) {
	r, p := newRemote(t, openBucket(t), statesync.Options{}), newPlace(t)
	p.write("a", "one")
	p.write("b", "one")
	status := func() *statesync.Status {
		t.Helper()
		st, err := r.Status(t.Context(), p.Tree)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	if st := status(); st.Latest != 0 || st.Behind || !st.Synced.IsZero() || !slices.Equal(st.Added.Paths, []string{"a", "b"}) {
		t.Errorf("before the first push: %+v", st)
	}
	v := p.push(r).Version
	if st := status(); st.Latest != v || st.Behind || time.Since(st.Synced) > time.Minute || st.Added.Count+st.Changed.Count+st.Removed.Count+st.Unread.Count > 0 {
		t.Errorf("after a push: %+v", st)
	}
	p.write("a", "longer")
	p.remove("b")
	p.write("c", "one")
	if st := status(); !slices.Equal(st.Added.Paths, []string{"c"}) || !slices.Equal(st.Changed.Paths, []string{"a"}) || !slices.Equal(st.Removed.Paths, []string{"b"}) {
		t.Errorf("after changes: %+v", st)
	}
	q := newPlace(t)
	q.write("d", "one")
	q.push(r)
	if st := status(); st.Latest <= v || !st.Behind {
		t.Errorf("after the push of another: %+v", st)
	}
}

func TestCompare(t *testing.T) {
	file := func(path string, sum byte) statesync.File {
		return statesync.File{Path: path, Checksum: statesync.MD5{sum}, Size: 1}
	}
	state := func(files ...statesync.File) *statesync.State { return &statesync.State{Files: files} }
	one, two, changed := file("one", 1), file("two", 2), file("one", 3)
	paths := func(files []statesync.File) (all []string) {
		for _, f := range files {
			all = append(all, f.Path+strconv.Itoa(int(f.Checksum[0])))
		}
		return all
	}
	for _, tt := range []struct {
		name                   string
		local, remote          *statesync.State
		download, remove, skip []string
	}{
		{name: "nothing"},
		{name: "empty", local: state(), remote: state()},
		{name: "there only", remote: state(one, two), download: []string{"one1", "two2"}},
		{name: "here only", local: state(one, two), remove: []string{"one", "two"}},
		{name: "alike", local: state(one, two), remote: state(two, one), skip: []string{"two2", "one1"}},
		{name: "changed", local: state(one), remote: state(changed), download: []string{"one3"}},
		{name: "all of it", local: state(one, file("old", 4)), remote: state(changed, two), download: []string{"one3", "two2"}, remove: []string{"old"}},
	} {
		d := statesync.Compare(tt.local, tt.remote)
		if !slices.Equal(paths(d.Download), tt.download) || !slices.Equal(d.Delete, tt.remove) || !slices.Equal(paths(d.Skip), tt.skip) {
			t.Errorf("%s: %+v", tt.name, d)
		}
	}
}
