package sshd

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func (r *rig) newSFTP(t *testing.T) *sftp.Client {
	t.Helper()
	c, err := sftp.NewClient(r.newClient(t, "web"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// fileContent returns the content of the sandbox's file.
func (r *rig) fileContent(t *testing.T, name string) string {
	t.Helper()
	data, err := atoll.ReadFile(t.Context(), r.sb, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (r *rig) putFile(t *testing.T, name, content string) {
	t.Helper()
	if err := atoll.WriteFile(t.Context(), r.sb, name, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

func codeIs(err error, code error) bool {
	status, ok := errors.AsType[*sftp.StatusError](err)
	return ok && status.FxCode() == code || errors.Is(err, code)
}

func TestSFTP(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		c := r.newSFTP(t)
		work, err := c.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		if st, err := r.sb.Status(t.Context()); err != nil || work != st.Spec.Workdir {
			t.Errorf("relative names are in %q, want the work directory %q", work, st.Spec.Workdir)
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		refused := func(what string, err, code error) {
			t.Helper()
			if !codeIs(err, code) {
				t.Errorf("%s: %v, want %v", what, err, code)
			}
		}
		r.putFile(t, "a/one", "1")
		must(c.Mkdir("b"))
		refused("mkdir of what is there", c.Mkdir("b"), sftp.ErrSSHFxFailure)
		refused("mkdir without a parent", c.Mkdir("no/b"), os.ErrNotExist)
		r.putFile(t, "b/two", "22")
		must(c.Rename("b/two", "b/three"))
		r.putFile(t, "b/two", "2")
		refused("rename onto another", c.Rename("b/two", "b/three"), sftp.ErrSSHFxFailure)
		must(c.PosixRename("b/two", "b/three"))
		if got := r.fileContent(t, "b/three"); got != "2" {
			t.Errorf("after rename: %q", got)
		}
		must(c.Symlink("three", "b/link"))
		must(c.Symlink("../b", "a/up"))
		must(c.Symlink("nowhere", "a/dangling"))
		refused("a link onto another", c.Symlink("x", "b/link"), sftp.ErrSSHFxFailure)
		if to, err := c.ReadLink("b/link"); err != nil || to != "three" {
			t.Errorf("readlink: %q, %v", to, err)
		}
		_, err = c.ReadLink("b/three")
		refused("readlink of a file", err, sftp.ErrSSHFxBadMessage)
		for name, want := range map[string]string{"b/link": "file 1", "a/up/link": "file 1", "a/up": "dir", "a": "dir", "b/three": "file 1"} {
			fi, err := c.Stat(name)
			if err != nil {
				t.Error(err)
				continue
			}
			got := "dir"
			if fi.Mode().IsRegular() {
				got = fmt.Sprintf("file %d", fi.Size())
			}
			if got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		_, err = c.Stat("a/dangling")
		refused("stat of a dangling link", err, os.ErrNotExist)
		if fi, err := c.Lstat("b/link"); err != nil || fi.Mode()&os.ModeSymlink == 0 {
			t.Errorf("lstat: %v, %v", fi, err)
		}
		list, err := c.ReadDir("b")
		must(err)
		if names := namesOf(list); names != "link three" {
			t.Errorf("list: %q", names)
		}
		if fi, err := c.Stat("a/one"); err != nil || fi.Mode() != 0o640 || time.Since(fi.ModTime()) > testenv.Scale(time.Minute) {
			t.Errorf("stat: %v, %v", fi, err)
		}
		refused("rmdir of a file", c.RemoveDirectory("a/one"), os.ErrNotExist)
		refused("rmdir of a full one", c.RemoveDirectory("a"), sftp.ErrSSHFxFailure)
		must(c.Remove("b/link"))
		must(c.Remove("b/three"))
		must(c.RemoveDirectory("b"))
		refused("stat of what is gone", c.Remove("b"), os.ErrNotExist)
		must(c.Link("a/one", "a/hard"))
		must(c.Chmod("a/hard", 0o600))
		must(c.Truncate("a/hard", 3))
		must(c.Chtimes("a/hard", time.Unix(1e9, 0), time.Unix(1e9, 0)))
		if fi, err := c.Stat("a/one"); err != nil || fi.Mode() != 0o600 || fi.Size() != 3 || fi.ModTime().Unix() != 1e9 {
			t.Errorf("by its other name, the file is %v, %v", fi, err)
		}
		if space, err := c.StatVFS("."); err != nil || space.TotalSpace() == 0 {
			t.Errorf("statvfs: %+v, %v", space, err)
		}
		must(c.Chmod("a", 0o700))
		must(c.Chtimes("a", time.Unix(1e9, 0), time.Unix(1e9, 0)))
		if fi, err := c.Stat("a"); err != nil || fi.Mode().Perm() != 0o700 || fi.ModTime().Unix() != 1e9 {
			t.Errorf("the directory is %v of %v, %v", fi.Mode(), fi.ModTime(), err)
		}
		_, err = c.Open("nope")
		refused("open", err, os.ErrNotExist)
		_, err = c.Open("a")
		refused("open of a directory", err, sftp.ErrSSHFxFailure)
	})
}

func namesOf(list []os.FileInfo) string {
	var names []string
	for _, fi := range list {
		names = append(names, fi.Name())
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestSFTPWrites(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		c := r.newSFTP(t)
		write := func(name string, flags int, pieces map[int64]string) error {
			t.Helper()
			f, err := c.OpenFile(name, flags)
			if err != nil {
				return err
			}
			for off, piece := range pieces {
				if _, err := f.WriteAt([]byte(piece), off); err != nil {
					f.Close()
					return err
				}
			}
			return f.Close()
		}
		const fresh = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
		for _, step := range []struct {
			what   string
			flags  int
			pieces map[int64]string
			want   string
			fails  bool
		}{
			{"in pieces, in any order", fresh, map[int64]string{4: "efgh", 0: "abcd", 8: "ij"}, "abcdefghij", false},
			{"into the middle", os.O_RDWR, map[int64]string{2: "XY"}, "abXYefghij", false},
			{"behind the end", os.O_WRONLY | os.O_CREATE | os.O_APPEND, map[int64]string{10: "kl"}, "abXYefghijkl", false},
			{"to the end, whatever the offset", os.O_WRONLY | os.O_APPEND, map[int64]string{0: "mn"}, "abXYefghijklmn", false},
			{"nothing", os.O_WRONLY, nil, "abXYefghijklmn", false},
			{"a file that must not be there", os.O_WRONLY | os.O_CREATE | os.O_EXCL, nil, "abXYefghijklmn", true},
			{"with a hole", fresh, map[int64]string{3: "x"}, "\x00\x00\x00x", false},
			{"nothing but the end", fresh, nil, "", false},
		} {
			if err := write("file", step.flags, step.pieces); (err != nil) != step.fails {
				t.Errorf("%s: %v", step.what, err)
			}
			if got := r.fileContent(t, "file"); got != step.want {
				t.Errorf("%s: the file is %q, want %q", step.what, got, step.want)
			}
		}
		if err := write("none", os.O_WRONLY, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file that is not to be made: %v", err)
		}
		if err := write("no/file", fresh, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file in no directory: %v", err)
		}
		r.putFile(t, "dir/x", "")
		if err := write("dir", fresh, nil); err == nil {
			t.Error("a directory was written to")
		}
		if err := write("new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, map[int64]string{0: "n"}); err != nil || r.fileContent(t, "new") != "n" {
			t.Errorf("a new file: %v", err)
		}
	})
}

// Everybody sees what is written at once.
func TestSFTPFileBeingWritten(t *testing.T) {
	r := newRig(t, newMock(t), nil)
	c := r.newSFTP(t)
	r.putFile(t, "file", "old")
	f, err := c.OpenFile("file", os.O_RDWR|os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("brand new")); err != nil {
		t.Fatal(err)
	}
	if got := r.fileContent(t, "file"); got != "brand new" {
		t.Errorf("inside, the file holds %q", got)
	}
	back := make([]byte, 5)
	if _, err := f.ReadAt(back, 0); err != nil || string(back) != "brand" {
		t.Errorf("read back %q, %v", back, err)
	}
	for what, stat := range map[string]func() (os.FileInfo, error){
		"fstat": f.Stat, "stat": func() (os.FileInfo, error) { return c.Stat("file") }, "lstat": func() (os.FileInfo, error) { return c.Lstat("file") },
	} {
		if fi, err := stat(); err != nil || fi.Size() != 9 {
			t.Errorf("%s: %v, %v", what, fi, err)
		}
	}
	if err := f.Truncate(5); err != nil {
		t.Error(err)
	}
	when := time.Unix(1_000_000_000, 0)
	if err := errors.Join(f.Chmod(0o751), c.Chtimes("file", when, when), f.Sync()); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := atoll.Files(r.sb).Stat(t.Context(), "file")
	if err != nil || r.fileContent(t, "file") != "brand" || info.Mode != 0o751 || !info.Modified.Equal(when) {
		t.Errorf("%q with %+v, %v", r.fileContent(t, "file"), info, err)
	}
	if all, err := atoll.Files(r.sb).List(t.Context(), ".", false); err != nil || len(all) != 1 {
		t.Errorf("left in the directory: %v, %v", all, err)
	}
}

// A client can resume an interrupted upload.
func TestSFTPKeepsWhatCame(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		conn := r.newClient(t, "web")
		c, err := sftp.NewClient(conn)
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Create("file")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		eventually(t, "what came is there", func() bool {
			data, err := atoll.ReadFile(t.Context(), r.sb, "file")
			return err == nil && string(data) == "half"
		})
		c = r.newSFTP(t)
		f, err = c.OpenFile("file", os.O_WRONLY|os.O_APPEND)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(" and half"), 4); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil || r.fileContent(t, "file") != "half and half" {
			t.Errorf("resumed: %q, %v", r.fileContent(t, "file"), err)
		}
	})
}

func TestSFTPIsBounded(t *testing.T) {
	r := newRig(t, newMock(t), func(s *Server) { s.opts.MaxUpload = 1000 })
	c := r.newSFTP(t)
	f, err := c.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1}, 1000); err == nil || !strings.Contains(err.Error(), "max_upload") {
		t.Errorf("a byte beyond the limit: %v", err)
	}
	if _, err := f.WriteAt([]byte{1}, 1<<62); err == nil {
		t.Error("a hole of that size was taken")
	}
	if err := errors.Join(f.Close(), c.Truncate("file", 1000)); err != nil {
		t.Error(err)
	}
	if err := c.Truncate("file", 1001); err == nil {
		t.Error("a size beyond the limit was taken")
	}
	if f, err = c.OpenFile("file", os.O_WRONLY|os.O_APPEND); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1}, 0); err == nil {
		t.Error("a byte was appended beyond the limit")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if fi, err := c.Stat("file"); err != nil || fi.Size() != 1000 {
		t.Errorf("the file is %v, %v", fi, err)
	}
	var open []*sftp.File
	for range maxFiles {
		f, err := c.Open("file")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	if _, err := c.Open("file"); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("more than %d files: %v", maxFiles, err)
	}
	for _, f := range open {
		f.Close()
	}
	if f, err := c.Open("file"); err != nil {
		t.Errorf("there is no handle again: %v", err)
	} else {
		f.Close()
	}
}

func TestSFTPLargeFiles(t *testing.T) {
	r := newRig(t, providers["local"](t), nil)
	c := r.newSFTP(t)
	const size = 64 << 20
	data := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(data)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f, err := c.Create("large")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFromWithConcurrency(bytes.NewReader(data), 32); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err = c.Open("large"); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if n, err := f.WriteTo(sum); err != nil || n != size {
		t.Fatalf("%d bytes came back, %v", n, err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("it came back as something else")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
	// and in any order, by several at once
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				off, n := rand.Int64N(size), rand.IntN(100<<10)
				got := make([]byte, n)
				m, err := f.ReadAt(got, off)
				if err != nil && err != io.EOF {
					t.Errorf("ReadAt: %v", err)
				}
				if want := data[off:min(off+int64(n), size)]; !bytes.Equal(got[:m], want) {
					t.Errorf("%d bytes at %d are not those", n, off)
				}
			}
		})
	}
	all.Wait()
}

func TestSFTPOfAStoppedSandbox(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		r.putFile(t, "result", "42")
		if err := r.sb.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		f, err := r.newSFTP(t).Open("result")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if data, err := io.ReadAll(f); err != nil || string(data) != "42" {
			t.Errorf("read %q, %v", data, err)
		}
	})
}

// The server says why it ends a session, also to a client that stays.
func TestSFTPEnds(t *testing.T) {
	r := newRig(t, newMock(t), nil)
	for _, c := range []struct{ user, send, want string }{
		{"nobody", "", "sandbox not found"},
		{"web", "\x00\x00\x00\x00\x01\x02\x03", "malformed request"},
		{"web", "\x7f\xff\xff\xff\x03", "malformed request"},
		{"web", "\x00\x00\x00\x07\x03\x00\x00\x00\x01\x00\x00", "malformed request"},
		{"web", "\x00\x00\x00\x0c\x05\x00\x00\x00\x01\x00\x00\x00\x031234", "malformed request"},
	} {
		ch, requests, err := r.newClient(t, c.user).OpenChannel("session", nil)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{"sftp"})); !ok || err != nil {
			t.Fatal(ok, err)
		}
		_, _ = io.WriteString(ch, c.send) // fails if the server was faster
		var said []byte
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			said, _ = io.ReadAll(ch.Stderr())
		}()
		exit := <-requests
		if <-ended; exit.Type != "exit-status" || !bytes.Equal(exit.Payload, []byte{0, 0, 0, 255}) || !strings.Contains(string(said), c.want) {
			t.Errorf("%s %q: %s %x, and %q; want code 255 and %q", c.user, c.send, exit.Type, exit.Payload, said, c.want)
		}
	}
}

// A program that has a file open and a client of sftp write to the same file.
func TestSFTPFileInUse(t *testing.T) {
	r := newRig(t, providers["local"](t), nil)
	in, w := io.Pipe()
	p, err := r.sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "exec cat >>log"}, Stdin: in})
	if err != nil {
		t.Fatal(err)
	}
	say := func(line, want string) {
		t.Helper()
		if _, err := io.WriteString(w, line); err != nil {
			t.Fatal(err)
		}
		eventually(t, line+" is in the file", func() bool { return r.fileContent(t, "log") == want })
	}
	eventually(t, "the file is there", func() bool { _, err := atoll.Files(r.sb).Stat(t.Context(), "log"); return err == nil })
	say("one\n", "one\n")
	c := r.newSFTP(t)
	f, err := c.OpenFile("log", os.O_WRONLY|os.O_APPEND|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("mine\n")); err != nil {
		t.Fatal(err)
	}
	say("two\n", "one\nmine\ntwo\n")
	if _, err := f.Write([]byte("again\n")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	say("three\n", "one\nmine\ntwo\nagain\nthree\n")
	w.Close()
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("the program ended with %v, %v", exit, err)
	}
}
