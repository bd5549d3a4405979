package filesync_test

import (
	"crypto/md5"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// A foreignStore is a place of versions as other programs see it.
type foreignStore struct {
	t     *testing.T
	store string             // for openAt
	b     objectstore.Bucket // of plain files
}

// forForeignStores runs a test with one in a directory, and one in object storage.
func forForeignStores(t *testing.T, test func(t *testing.T, s *foreignStore)) {
	t.Run("directory", func(t *testing.T) {
		dir := t.TempDir()
		test(t, &foreignStore{t, dir, openStore(t, dir).(*objectstore.Dir).Plain()})
	})
	t.Run("s3", func(t *testing.T) {
		endpoint := tests3.Versity(t)
		test(t, &foreignStore{t, endpoint, openStore(t, endpoint)})
	})
}

func (s *foreignStore) remote(o filesync.Options) *filesync.Remote {
	s.t.Helper()
	return newRemote(s.t, openStore(s.t, s.store), o)
}

// putVersion writes a version as the specification of state files has it.
func (s *foreignStore) putVersion(n int64, files map[string]string) {
	s.t.Helper()
	type entry struct {
		Path     string `json:"path"`
		Checksum string `json:"checksum"`
		Size     int    `json:"size"`
		Modified int64  `json:"modified_at"`
	}
	var entries []entry
	for path, text := range files {
		entries = append(entries, entry{path, fmt.Sprintf("%x", md5.Sum([]byte(text))), len(text), 1704067100})
		putText(s.t, s.b, fmt.Sprintf("%d/%s", n, path), text)
	}
	b, err := json.Marshal(map[string]any{"version": "1.0", "last_synced_at": n, "files": entries})
	if err != nil {
		s.t.Fatal(err)
	}
	putText(s.t, s.b, fmt.Sprintf("%d/%s", n, filesync.StateName), string(b))
}

// readVersion reads a version as a program does that knows the specification only: the
// files of the state file.
func (s *foreignStore) readVersion(n int64) map[string]string {
	s.t.Helper()
	read := func(name string) string {
		body, _, err := s.b.Get(s.t.Context(), fmt.Sprintf("%s/%d/%s", prefix, n, name), 0, -1)
		if err != nil {
			return err.Error()
		}
		defer body.Close()
		b, err := io.ReadAll(body)
		if err != nil {
			s.t.Error(err)
		}
		return string(b)
	}
	var state struct {
		Version string
		Files   []struct {
			Path, Checksum string
			Size           int
		}
	}
	if err := json.Unmarshal([]byte(read(filesync.StateName)), &state); err != nil || state.Version != "1.0" {
		s.t.Fatalf("version %d: %+v, %v", n, state, err)
	}
	files := map[string]string{}
	for _, f := range state.Files {
		text := read(f.Path)
		if len(text) != f.Size || fmt.Sprintf("%x", md5.Sum([]byte(text))) != f.Checksum {
			s.t.Errorf("version %d: %s does not have its checksum: %.60q", n, f.Path, text)
		}
		files[f.Path] = text
	}
	return files
}

func (p *testDir) texts() map[string]string {
	p.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(p.dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != filesync.StateName {
			rel, _ := filepath.Rel(p.dir, name)
			all[filepath.ToSlash(rel)] = p.readText(filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

func versionNumbers(t *testing.T, r *filesync.Remote) (all []int64, latest int64) {
	t.Helper()
	for v, err := range r.Versions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v.Version)
		if v.Latest {
			latest = v.Version
		}
	}
	return all, latest
}

// Versions of other programs are listed and pulled, and are the base of pushes.
func TestForeignVersions(t *testing.T) {
	forForeignStores(t, func(t *testing.T, s *foreignStore) {
		for _, layout := range []filesync.Layout{filesync.LayoutPacked, filesync.LayoutFiles} {
			r := s.remote(filesync.Options{Layout: layout})
			if layout == filesync.LayoutPacked {
				p := newPlace(t)
				if st := p.pull(r, filesync.PullOptions{}); st.Version != 0 || st.Fresh {
					t.Errorf("a pull of nothing: %+v", st)
				}
				s.putVersion(1704067100, map[string]string{"old": "1"})
				s.putVersion(1704067200, map[string]string{"src/main.py": "print(1)\n", "empty": "", "c++ x": strings.Repeat("x", 300<<10)})
			} else {
				s.putVersion(9704067200, map[string]string{"src/main.py": "print(2)\n", "new": "2"})
			}
			before, latest := versionNumbers(t, r)
			want := map[string]string{"src/main.py": "print(1)\n", "empty": "", "c++ x": strings.Repeat("x", 300<<10)}
			if layout == filesync.LayoutFiles {
				want = map[string]string{"src/main.py": "print(2)\n", "new": "2"}
			}
			if latest != before[len(before)-1] {
				t.Errorf("%s: the versions are %v, the latest %d", layout, before, latest)
			}
			p := newPlace(t)
			if st := p.pull(r, filesync.PullOptions{}); st.Version != latest || st.Failed > 0 || fmt.Sprint(p.texts()) != fmt.Sprint(want) {
				t.Errorf("%s: Pull: %+v: %.200s", layout, st, fmt.Sprint(p.texts()))
			}
			if st := p.status(r); st.Behind || st.Latest != latest || st.Changed.Count+st.Added.Count > 0 {
				t.Errorf("%s: Status: %+v", layout, st)
			}
			if st := p.push(r); st.Version != latest {
				t.Errorf("%s: a push of nothing new: %+v", layout, st)
			}
			p.writeText("mine", "1")
			st := p.push(r)
			if st.Version <= latest || st.Replaced != 0 {
				t.Errorf("%s: Push: %+v after version %d", layout, st, latest)
			}
			q := newPlace(t)
			q.pull(r, filesync.PullOptions{})
			checkEqual(t, p, q)
		}
	})
}

// Files whose names mean something to a store, or to another system, are packed, and come back in full.
func TestLayoutHostileNames(t *testing.T) {
	forForeignStores(t, func(t *testing.T, s *foreignStore) {
		r := s.remote(filesync.Options{Layout: filesync.LayoutFiles})
		p := newPlace(t)
		for _, name := range []string{".sandbox-state+object", "a+low/b", `x\..\..\latest+object`, "latest+object", "sub/.Sandbox-State", "end.", "end ", "c:d", "plain"} {
			p.writeText(name, name)
		}
		p.awaitTick()
		for range 2 {
			st := p.push(r)
			if o, err := s.b.Stat(t.Context(), fmt.Sprintf("%s/%d/plain", prefix, st.Version)); err != nil || o.Size != int64(len("plain")) {
				t.Errorf("other programs find %+v, %v", o, err)
			}
			q := newPlace(t)
			q.pull(s.remote(filesync.Options{}), filesync.PullOptions{})
			checkEqual(t, p, q)
			p.writeText("more", "1")
		}
	})
}

// Other programs read what a push with LayoutFiles writes, and it comes back in full.
func TestLayoutFiles(t *testing.T) {
	forForeignStores(t, func(t *testing.T, s *foreignStore) {
		r := s.remote(filesync.Options{Layout: filesync.LayoutFiles})
		p := newPlace(t)
		p.writeText("src/main.py", "print(1)\n")
		p.writeText("big", strings.Repeat("x", 300<<10))
		p.writeText("empty", "")
		p.writeText("UPPER/c", "1")
		if err := os.MkdirAll(p.filePath("no files"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("big", p.filePath("link")); err != nil {
			t.Fatal(err)
		}
		p.awaitTick()
		first := p.push(r).Version
		if got, want := s.readVersion(first), p.texts(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("other programs read %.300s, want %.300s", fmt.Sprint(got), fmt.Sprint(want))
		}
		was := map[int64]string{first: p.content()}
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(p.filePath("big"), past, past); err != nil {
			t.Fatal(err)
		}
		if st := p.push(r); st.Version != first || st.FilesUploaded > 0 {
			t.Errorf("a push of nothing new: %+v", st)
		}
		p.writeText("src/main.py", "print(2)\n")
		p.removeFile("empty")
		second := p.push(r)
		was[second.Version] = p.content()
		if got, want := s.readVersion(second.Version), p.texts(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("other programs read %.300s, want %.300s", fmt.Sprint(got), fmt.Sprint(want))
		}
		for n, content := range was {
			q := newPlace(t)
			q.pull(s.remote(filesync.Options{}), filesync.PullOptions{Version: n})
			if got := q.content(); got != content {
				t.Errorf("version %d: %s", n, firstDifference(content, got))
			}
		}
		// A push that cannot read a file copies that of the version before.
		p.writeText("third", "3")
		p.FS = unreadableFS{p.FS, "src/main.py", atoll.ErrDenied}
		p.writeText("src/main.py", "unreadable")
		third, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{})
		if err != nil || third.Failed != 1 {
			t.Fatalf("Push: %+v, %v", third, err)
		}
		if got := s.readVersion(third.Version)["src/main.py"]; got != "print(2)\n" {
			t.Errorf("src/main.py is %q", got)
		}
		pruned, err := r.Prune(t.Context(), filesync.Keep{Last: 1})
		if err != nil || !slices.Equal(pruned.Versions, []int64{first, second.Version}) {
			t.Errorf("Prune: %+v, %v", pruned, err)
		}
		for o, err := range s.b.List(t.Context(), fmt.Sprintf("%s/%d/", prefix, first)) {
			t.Errorf("after the prune, there is %+v, %v", o, err)
		}
		s.readVersion(third.Version)
	})
}
