package supervised

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A cached record is as the file is now, and its own.
func TestRecordCache(t *testing.T) {
	dir, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var cache recordCache
	id, age := atoll.NewID(), time.Hour
	write := func(name string) {
		t.Helper()
		err := dir.Write(&statedir.Record{Status: atoll.Status{ID: id, Spec: atoll.Spec{Name: name, Labels: map[string]string{"a": name}}}})
		if err == nil {
			age += time.Minute
			err = os.Chtimes(dir.Record(id), time.Now().Add(-age), time.Now().Add(-age))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(want string) *statedir.Record {
		t.Helper()
		rec, err := cache.readRecord(dir, id)
		if err != nil {
			t.Fatal(err)
		}
		if got := rec.Status.Spec; got.Name != want || got.Labels["a"] != want {
			t.Errorf("got %+v, want %s", got, want)
		}
		return rec
	}
	for _, name := range []string{"one", "two", "six"} { // of one size
		write(name)
		read(name)
		if _, ok := cache.records[id]; !ok {
			t.Errorf("%s is not cached", name)
		}
		read(name).Status.Spec.Labels["a"] = "changed"
		read(name)
	}
	if err := os.WriteFile(dir.Record(id), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if rec, err := cache.readRecord(dir, id); err != nil || !rec.Damaged {
		t.Errorf("a damaged record: %+v, %v", rec, err)
	}
	if err := os.Remove(dir.Record(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.readRecord(dir, id); !errors.Is(err, fs.ErrNotExist) || len(cache.records) > 0 {
		t.Errorf("a removed record: %v, %d are cached", err, len(cache.records))
	}
}
