package filesync_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// A textBucket is a read-only bucket in memory.
type textBucket struct {
	objectstore.Bucket
	objects map[string]string
}

func (b textBucket) Get(_ context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	text, ok := b.objects[key]
	switch {
	case !ok:
		return nil, objectstore.Object{}, atoll.E("get", key, atoll.ErrNotExist, nil)
	case offset > int64(len(text)):
		return nil, objectstore.Object{}, atoll.E("get", key, atoll.ErrInvalid, nil)
	case length < 0:
		length = int64(len(text))
	}
	body := io.NewSectionReader(strings.NewReader(text), offset, length)
	return io.NopCloser(body), objectstore.Object{Key: key, Size: int64(len(text)), Tag: "1"}, nil
}

func (b textBucket) String() string { return "mem://" }

// Whatever a version contains, a pull writes nothing outside the directory, and leaves
// files there unchanged.
func FuzzVersion(f *testing.F) {
	f.Add([]byte(`{"version":"1.0","files":[`+entryOf("a/b")+`]}`), "link")
	f.Add([]byte(`{"version":"1.0","sorted":true,"files":[{"path":"l","type":"symlink","target":"..","checksum":"`+md5OfX+`"},`+entryOf("l/x")+`]}`), "l")
	f.Add([]byte(`{"version":"1.0","files":[{"path":"../x","type":"directory","checksum":"`+md5OfX+`"},`+entryOf("link/x")+`]}`), "../link")
	f.Fuzz(func(t *testing.T, state []byte, link string) {
		base := t.TempDir()
		dir, outside := filepath.Join(base, "in", "work"), filepath.Join(base, "outside")
		for _, d := range []string{dir, outside} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{filepath.Join(outside, "a"), filepath.Join(dir, "mine")} {
			if err := os.WriteFile(name, []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if fs.ValidPath(link) && !strings.Contains(link, "/") && !strings.ContainsRune(link, 0) {
			_ = os.Symlink(outside, filepath.Join(dir, link))
		}
		b := textBucket{objects: map[string]string{prefix + "/5/.sandbox-state": string(state)}}
		for _, name := range []string{"a/b", "l/x", "link/x"} {
			b.objects[prefix+"/5/"+name] = "x"
		}
		fsys, err := dirfs.New("/work", dir, dirfs.Options{UID: -1, GID: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer fsys.Close()
		r, err := filesync.New(b, prefix, filesync.Options{MaxFiles: 100, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = r.Pull(t.Context(), filesync.Tree{FS: fsys, Dir: "/work"}, filesync.PullOptions{Version: 5}) // it may fail
		var all []string
		for _, top := range []string{outside, filepath.Join(base, "in")} {
			entries, err := os.ReadDir(top)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				all = append(all, e.Name())
			}
		}
		if len(all) != 2 || all[0] != "a" || all[1] != "work" {
			t.Errorf("outside there are %q", all)
		}
		for _, name := range []string{filepath.Join(outside, "a"), filepath.Join(dir, "mine")} {
			if got, err := os.ReadFile(name); !bytes.Equal(got, []byte("mine")) {
				t.Errorf("%s is %q, %v", name, got, err)
			}
		}
	})
}

// Rules come from a sandbox: reading any of them takes little time.
func FuzzIgnore(f *testing.F) {
	f.Add("*.log\n!keep\n/build/\n", "a/b.log")
	f.Add("a/**/b\n[a-\n\\\n**\n", "a/x/b")
	f.Add("**/a/**/a/**/a/**/a/**/b", strings.Repeat("a/", 40)+"c")
	f.Add("*a*a*a*a*a*a*a*a*b", strings.Repeat("a", 200))
	f.Fuzz(func(t *testing.T, rules, path string) {
		if len(rules) > 4<<10 || len(path) > 4<<10 {
			return
		}
		begin := time.Now()
		_, _ = filesync.Ignores(rules, path, false)
		if took := time.Since(begin); took > testenv.Scale(10*time.Second) {
			t.Errorf("it took %v", took)
		}
	})
}
