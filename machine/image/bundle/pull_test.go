package bundle

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func openStore(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	s.wait = time.Millisecond
	t.Cleanup(func() { s.Close() })
	return s
}

// wantKind fails unless err has the kind, and text in it.
func wantKind(t *testing.T, err error, kind atoll.Kind, text string) {
	t.Helper()
	if atoll.KindOf(err) != kind || err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("error %v (%s), want %s with %q", err, atoll.KindOf(err), kind, text)
	}
}

// wantClean fails if s has unfinished work, other than partly pulled files.
func wantClean(t *testing.T, s *Store) {
	t.Helper()
	for _, sub := range []string{tempsDir, locksDir} {
		entries, err := os.ReadDir(s.storePath(sub))
		if err != nil || len(entries) > 0 {
			t.Errorf("in %s: %v (%v), want nothing", sub, entries, err)
		}
	}
}

// writeSource makes a bundle like those of Export, from files that no machine could boot.
func writeSource(t *testing.T) (dir string, m *Manifest) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := func(name string, size int) File {
		data := make([]byte, size)
		rand.Read(data)
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := describeFile(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	m = &Manifest{
		Version: ManifestVersion, Arch: runtime.GOARCH,
		Kernel: Kernel{File: file(kernelName, 300<<10)}, Initrd: Initrd{File: file(initrdName, 100<<10)},
		Disks: []Disk{{ID: RootDisk, Format: "squashfs", File: file("root.squashfs", 4<<20)}},
	}
	writeManifest(t, dir, m)
	return dir, m
}

func writeManifest(t *testing.T, dir string, m *Manifest) (digest string) {
	t.Helper()
	raw, err := m.encodeJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifestName), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return digestOf(raw)
}

// wantBundle fails unless b has the files in dir.
func wantBundle(t *testing.T, b *Bundle, dir string) {
	t.Helper()
	for _, f := range append(b.listFiles(), File{Name: manifestName}) {
		got, err1 := os.ReadFile(filepath.Join(b.Dir, f.Name))
		want, err2 := os.ReadFile(filepath.Join(dir, f.Name))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: has %d bytes, want %d, or others (%v)", f.Name, len(got), len(want), err)
		}
	}
}

// A faultyServer answers each request for a file with the next fault of its list, and
// correctly when there are no more.
type faultyServer struct {
	files  http.Handler
	mu     sync.Mutex
	faults map[string][]func(w http.ResponseWriter, r *http.Request, files http.Handler)
	asked  []string // "FILE RANGE"
}

func (f *faultyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := filepath.Base(r.URL.Path)
	f.mu.Lock()
	f.asked = append(f.asked, strings.TrimSpace(name+" "+r.Header.Get("Range")))
	var fault func(http.ResponseWriter, *http.Request, http.Handler)
	if list := f.faults[name]; len(list) > 0 {
		fault, f.faults[name] = list[0], list[1:]
	}
	f.mu.Unlock()
	if fault == nil {
		f.files.ServeHTTP(w, r)
		return
	}
	fault(w, r, f.files)
}

func serveDir(t *testing.T, dir string) (*faultyServer, string) {
	f := &faultyServer{files: http.FileServer(http.Dir(filepath.Dir(dir))), faults: map[string][]func(http.ResponseWriter, *http.Request, http.Handler){}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL + "/" + filepath.Base(dir)
}

// answerStatus answers with a status only.
func answerStatus(code int) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(code) }
}

// cutAfter breaks the connection after n bytes of the response.
func cutAfter(n int64) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, files http.Handler) {
		files.ServeHTTP(&cuttingWriter{ResponseWriter: w, left: n}, r)
	}
}

type cuttingWriter struct {
	http.ResponseWriter
	left int64
}

func (c *cuttingWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= c.left {
		c.left -= int64(len(p))
		return c.ResponseWriter.Write(p)
	}
	c.ResponseWriter.Write(p[:c.left])
	c.ResponseWriter.(http.Flusher).Flush() // else the client tries again by itself
	panic(http.ErrAbortHandler)
}

// replaceBody answers with other bytes than the file's.
func replaceBody(change func(b []byte) []byte) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, files http.Handler) {
		r.Header.Del("Range")
		rec := httptest.NewRecorder()
		files.ServeHTTP(rec, r)
		w.Write(change(rec.Body.Bytes()))
	}
}

func TestPull(t *testing.T) {
	dir, m := writeSource(t)
	f, url := serveDir(t, dir)
	s := openStore(t, t.TempDir(), Options{})
	if st := s.State(url); st.Status != NotStarted {
		t.Errorf("state %v before, want %s", st, NotStarted)
	}
	var seen []Status
	b, err := s.Pull(t.Context(), url, PullOptions{Progress: func(p atoll.Progress) { seen = append(seen, s.State(url).Status) }})
	if err != nil {
		t.Fatal(err)
	}
	wantBundle(t, b, dir)
	wantClean(t, s)
	if st := s.State(url); st.Status != Ready || st.Done != m.Size() || len(seen) == 0 || seen[0] != Downloading {
		t.Errorf("states %v, and %v at last; want downloading, and %s with %d bytes", seen, st, Ready, m.Size())
	}
	if got, err := s.Get("small"); err != nil || got.Digest != b.Digest {
		t.Errorf("by its name: %v, %v", got, err)
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].Names[0] != "small" {
		t.Errorf("list %v, %v", list, err)
	}
	// Another name of it fetches the manifest only.
	f.asked = nil
	if b, err = s.Pull(t.Context(), url+"/manifest.json", PullOptions{Name: "again", Digest: b.Digest}); err != nil {
		t.Fatal(err)
	}
	if len(f.asked) != 1 || fmt.Sprint(b.Names) != "[again small]" {
		t.Errorf("asked for %q, names %q", f.asked, b.Names)
	}
	// With another root disk, what is the same is not fetched.
	if err := os.WriteFile(filepath.Join(dir, "root.squashfs"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if m.Disks[0].File, err = describeFile(dir, "root.squashfs"); err != nil {
		t.Fatal(err)
	}
	writeManifest(t, dir, m)
	f.asked = nil
	if b, err = s.Pull(t.Context(), url, PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(f.asked) != "[manifest.json root.squashfs]" || fmt.Sprint(b.Names) != "[small]" {
		t.Errorf("asked for %q, names %q", f.asked, b.Names)
	}
	wantBundle(t, b, dir)
	// Exported, it is the same.
	out := filepath.Join(t.TempDir(), "out")
	if err := s.Export(t.Context(), b, out); err != nil {
		t.Fatal(err)
	}
	wantBundle(t, b, out)
	wantKind(t, s.Export(t.Context(), b, out), atoll.ErrAlreadyExists, "not empty")
	local, err := openStore(t, t.TempDir(), Options{}).Pull(t.Context(), out, PullOptions{})
	if err != nil || local.Digest != b.Digest || local.Names[0] != "out" {
		t.Errorf("from the directory: %v, %v", local, err)
	}
	// Removed, each is gone as a whole.
	wantKind(t, s.Remove("small", func(string) error { return atoll.E("remove", "", atoll.ErrConflict, nil) }), atoll.ErrConflict, "")
	for _, name := range []string{"small", "again"} {
		if err := s.Remove(name, nil); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, s.Remove("small", nil), atoll.ErrNotExist, "no such bundle")
	if _, err := s.Get("small"); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("removed, and found: %v", err)
	}
	for _, sub := range []string{bundlesDir, namesDir, tempsDir} {
		if entries, err := os.ReadDir(s.storePath(sub)); err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", sub, entries, err)
		}
	}
}

func TestPullGoesOn(t *testing.T) {
	dir, _ := writeSource(t)
	for _, c := range []struct {
		name   string
		faults []func(http.ResponseWriter, *http.Request, http.Handler)
		last   string // request
	}{
		{"after a break", []func(http.ResponseWriter, *http.Request, http.Handler){cutAfter(1 << 20), answerStatus(503), cutAfter(1 << 20)}, "root.squashfs bytes=2097152-"},
		{"where ranges are not known", []func(http.ResponseWriter, *http.Request, http.Handler){cutAfter(1 << 20), replaceBody(func(b []byte) []byte { return b })}, "root.squashfs bytes=1048576-"},
		{"where another range is sent", []func(http.ResponseWriter, *http.Request, http.Handler){cutAfter(1 << 20), func(w http.ResponseWriter, r *http.Request, files http.Handler) {
			r.Header.Set("Range", "bytes=7-")
			files.ServeHTTP(w, r)
		}}, "root.squashfs"},
		{"when told that the range is none", []func(http.ResponseWriter, *http.Request, http.Handler){cutAfter(1 << 20), answerStatus(416)}, "root.squashfs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, url := serveDir(t, dir)
			f.faults["root.squashfs"] = c.faults
			s := openStore(t, t.TempDir(), Options{})
			b, err := s.Pull(t.Context(), url, PullOptions{})
			if err != nil {
				t.Fatal(err)
			}
			wantBundle(t, b, dir)
			wantClean(t, s)
			if last := f.asked[len(f.asked)-1]; last != c.last {
				t.Errorf("the last request is %q of %q, want %q", last, f.asked, c.last)
			}
			if entries, _ := os.ReadDir(s.storePath(partialsDir)); len(entries) > 0 {
				t.Errorf("left: %v", entries)
			}
		})
	}
}

func TestPullRefuses(t *testing.T) {
	dir, m := writeSource(t)
	other := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	for _, c := range []struct {
		name, file string
		fault      func(http.ResponseWriter, *http.Request, http.Handler)
		kind       atoll.Kind
		text       string
		times      int // that the file is asked for
	}{
		{"another byte", "root.squashfs", replaceBody(other), atoll.ErrInvalid, "has digest", 1},
		{"a byte more", kernelName, replaceBody(func(b []byte) []byte { return append(b, 0) }), atoll.ErrInvalid, "longer than", 1},
		{"no manifest", manifestName, replaceBody(func([]byte) []byte { return []byte("<html>") }), atoll.ErrInvalid, "not a valid manifest", 1},
		{"not there", initrdName, answerStatus(404), atoll.ErrNotExist, "404", 1},
		{"not for us", initrdName, answerStatus(403), atoll.ErrDenied, "403", 1},
		{"in trouble", initrdName, answerStatus(500), atoll.ErrUnavailable, "500", maxAttempts},
		{"always broken off", initrdName, cutAfter(10), atoll.ErrUnavailable, "EOF", maxAttempts},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, url := serveDir(t, dir)
			for range 2 * maxAttempts {
				f.faults[c.file] = append(f.faults[c.file], c.fault)
			}
			s := openStore(t, t.TempDir(), Options{})
			_, err := s.Pull(t.Context(), url, PullOptions{})
			wantKind(t, err, c.kind, c.text)
			wantClean(t, s)
			n := 0
			for _, asked := range f.asked {
				if strings.HasPrefix(asked, c.file) {
					n++
				}
			}
			if n != c.times {
				t.Errorf("asked %d times: %q, want %d", n, f.asked, c.times)
			}
			if st := s.State(url); st.Status != Failed || st.Error != err.Error() {
				t.Errorf("state %v", st)
			}
			if list, err := s.List(); err != nil || len(list) > 0 {
				t.Errorf("there is %v, %v", list, err)
			}
			delete(f.faults, c.file) // and when the server is well again
			if _, err := s.Pull(t.Context(), url, PullOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	s := openStore(t, t.TempDir(), Options{})
	_, url := serveDir(t, dir)
	for _, c := range []struct{ name, source, digest, text string }{
		{"another bundle", url, digestOf([]byte("another")), "it is bundle sha256:"},
		{"plain HTTP", "http://192.0.2.1/small", "", "plain HTTP"},
		{"no URL", "ftp://192.0.2.1/small", "", "use the https:// URL"},
		{"no digest", url, "sha256:12", "is not a digest"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.Pull(t.Context(), c.source, PullOptions{Digest: c.digest})
			wantKind(t, err, atoll.ErrInvalid, c.text)
		})
	}
	for name, change := range map[string]func(m *Manifest){
		"a path":         func(m *Manifest) { m.Kernel.Name = "../kernel" },
		"its own name":   func(m *Manifest) { m.Kernel.Name = manifestName },
		"two of a name":  func(m *Manifest) { m.Initrd.Name = kernelName },
		"no size":        func(m *Manifest) { m.Initrd.Size = 0 },
		"too large":      func(m *Manifest) { m.Initrd.Size = maxSize },
		"no digest":      func(m *Manifest) { m.Initrd.Digest = "sha256:../../x" },
		"no root":        func(m *Manifest) { m.Disks[0].ID = "other" },
		"another format": func(m *Manifest) { m.Disks[0].Format = "ext4" },
		"no kernel":      func(m *Manifest) { m.Kernel = Kernel{} },
		"two systems":    func(m *Manifest) { m.Disks[0].Format = FormatArchive },
		"a second root": func(m *Manifest) {
			m.Disks = append(m.Disks, Disk{ID: "more", Format: FormatArchive, File: File{Name: "more.tar.gz", Size: 1, Digest: digestOf(nil)}})
		},
		"another version": func(m *Manifest) { m.Version = 2 },
		"another arch":    func(m *Manifest) { m.Arch = "riscv64" },
	} {
		t.Run(name, func(t *testing.T) {
			changed := *m
			changed.Disks = append([]Disk(nil), m.Disks...)
			change(&changed)
			writeManifest(t, dir, &changed)
			_, err := s.Pull(t.Context(), dir, PullOptions{})
			wantKind(t, err, atoll.ErrInvalid, "")
			wantClean(t, s)
		})
	}
}

// The next pull resumes an interrupted one, in whatever state that ended.
func TestPullInterrupted(t *testing.T) {
	dir, m := writeSource(t)
	f, url := serveDir(t, dir)
	s := openStore(t, t.TempDir(), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.faults["root.squashfs"] = append(f.faults["root.squashfs"], func(w http.ResponseWriter, r *http.Request, files http.Handler) {
		b, _ := os.ReadFile(filepath.Join(dir, "root.squashfs"))
		w.Write(b[:1<<20])
		w.(http.Flusher).Flush()
		for s.State(url).Done < m.Kernel.Size+m.Initrd.Size+1<<20 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
		<-r.Context().Done()
	})
	if _, err := s.Pull(ctx, url, PullOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("canceled: %v", err)
	}
	wantClean(t, s)
	partial := s.storePath(partialsDir, digestName(m.Disks[0].Digest))
	if fi, err := os.Stat(partial); err != nil || fi.Size() != 1<<20 {
		t.Fatalf("of the disk there is %v, %v, want 1 MiB", fi, err)
	}
	s = openStore(t, s.dir, Options{}) // as after a crash
	f.asked = nil
	b, err := s.Pull(t.Context(), url, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantBundle(t, b, dir)
	if got := f.asked[len(f.asked)-1]; got != "root.squashfs bytes=1048576-" {
		t.Errorf("asked for %q", f.asked)
	}
	// One that a power cut has torn is fetched from the beginning.
	if err := s.Remove("small", nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(partial, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f.asked = nil
	if b, err = s.Pull(t.Context(), url, PullOptions{}); err != nil {
		t.Fatal(err)
	}
	wantBundle(t, b, dir)
	if got := strings.Join(f.asked[len(f.asked)-2:], ", "); got != "root.squashfs bytes=2097152-, root.squashfs" {
		t.Errorf("asked for %q", f.asked)
	}
}

// Concurrent pulls of one bundle all succeed, and fetch it once.
func TestPullAtOnce(t *testing.T) {
	dir, _ := writeSource(t)
	f, url := serveDir(t, dir)
	state := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		s := openStore(t, state, Options{})
		all.Go(func() {
			if _, err := s.Pull(t.Context(), url, PullOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := 0
	for _, asked := range f.asked {
		if asked == "root.squashfs" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the disk was fetched %d times: %q", n, f.asked)
	}
	wantClean(t, openStore(t, state, Options{}))
}

// Open removes the unfinished work of a killed process, and not that of a living one.
func TestSweep(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("locks say nothing there")
	}
	s := openStore(t, t.TempDir(), Options{})
	alive, err := s.newTempDir()
	if err != nil {
		t.Fatal(err)
	}
	dead, err := s.newTempDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead.dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dead.lock.Release() // as the end of its process does
	openStore(t, s.dir, Options{})
	if _, err := os.Stat(dead.dir); !os.IsNotExist(err) {
		t.Errorf("what a dead one left: %v", err)
	}
	if _, err := os.Stat(alive.dir); err != nil {
		t.Errorf("what is being made: %v", err)
	}
	if err := alive.close(); err != nil {
		t.Error(err)
	}
	wantClean(t, s)
}
