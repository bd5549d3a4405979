package filesync_test

import (
	"os"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// A push ignores temporary files of killed writers, and a pull removes old ones.
func TestLeftovers(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	p.writeText("dir/file", "1")
	fresh, old := "dir/"+atoll.TempName(), atoll.TempName()
	p.writeText(fresh, "half a f")
	p.writeText(old, "half a f")
	p.writeText(".atoll-tmp-notes", "a user's")
	past := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(p.filePath(old), past, past); err != nil {
		t.Fatal(err)
	}
	if st := p.push(r); st.FilesUploaded != 2 {
		t.Errorf("Push: %+v, want two files", st)
	}
	if st, err := r.Status(t.Context(), p.Tree); err != nil || st.Added.Count > 0 {
		t.Errorf("Status: %+v, %v", st, err)
	}
	p.pull(r, filesync.PullOptions{})
	q.pull(r, filesync.PullOptions{})
	for name, want := range map[string]bool{fresh: true, old: false, ".atoll-tmp-notes": true} {
		if _, err := os.Stat(p.filePath(name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
	p.removeFile(fresh)
	checkEqual(t, p, q)
}
