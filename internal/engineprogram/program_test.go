//go:build linux

package engineprogram

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// newProgram returns a program that says what it is: a copy of echo, with text at its end.
func newProgram(t *testing.T, text string) packedProgram {
	t.Helper()
	data, err := os.ReadFile("/bin/echo")
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, text...)
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return packedProgram{"atoll-test", w.EncodeAll(data, nil), hex.EncodeToString(sum[:])}
}

func openProgram(t *testing.T, p packedProgram, dir string) *executable {
	t.Helper()
	exe, err := p.openFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.file.Close() })
	return exe
}

func runProgram(t *testing.T, exe *executable) {
	t.Helper()
	out, err := exec.Command(exe.path, "hi").CombinedOutput()
	if err != nil || string(out) != "hi\n" {
		t.Errorf("it printed %q, %v", out, err)
	}
}

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "engine")
	p := newProgram(t, "one")
	first := openProgram(t, p, dir)
	runProgram(t, first)
	before, err := first.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if before.Mode() != 0o555 {
		t.Errorf("mode %v", before.Mode())
	}
	second := openProgram(t, p, dir)
	if after, err := second.file.Stat(); err != nil || !os.SameFile(before, after) {
		t.Errorf("the second call wrote the file again: %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(first.path)); len(entries) != 1 {
		t.Errorf("files besides the program: %v", entries)
	}
	if err := os.Remove(first.path); err != nil {
		t.Fatal(err)
	}
	runProgram(t, openProgram(t, p, dir))
}

// Another user, and a damaged program, cannot choose what is executed.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	p := newProgram(t, "one")
	exe := openProgram(t, p, dir)
	if err := os.Chmod(exe.path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := p.openFile(dir); err == nil || !strings.Contains(err.Error(), exe.path) {
		t.Errorf("a file that everybody may write: %v", err)
	}
	p.sum = strings.Repeat("0", 64)
	if _, err := p.openFile(dir); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a wrong sum: %v", err)
	}
	p.data = p.data[:100]
	if _, err := p.openFile(dir); err == nil {
		t.Error("a part of a program was accepted")
	}
	if _, err := (packedProgram{name: "atoll-test"}).openFile(dir); err == nil || err.Error() != "this program was built without atoll-test" {
		t.Errorf("no program: %v", err)
	}
}

// A new version removes the files of those that no program uses or has used for a week.
func TestOtherVersions(t *testing.T) {
	dir := t.TempDir()
	used := openProgram(t, newProgram(t, "used"), dir)
	recent := openProgram(t, newProgram(t, "recent"), dir)
	unused := openProgram(t, newProgram(t, "unused"), dir)
	interrupted := filepath.Join(dir, "interrupted")
	if err := os.Mkdir(interrupted, 0o700); err != nil {
		t.Fatal(err)
	}
	recent.file.Close()
	unused.file.Close()
	old := time.Now().Add(-8 * 24 * time.Hour)
	for _, path := range []string{used.path, recent.path, unused.path, interrupted} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	openProgram(t, newProgram(t, "recent"), dir).file.Close()
	last := openProgram(t, newProgram(t, "last"), dir)
	for _, exe := range []*executable{used, recent, last} {
		runProgram(t, exe)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A version of one program removes no file of another program, which has a directory of its own.
func TestOtherPrograms(t *testing.T) {
	dir := t.TempDir()
	engine, native := newProgram(t, "engine"), newProgram(t, "native")
	engine.name, native.name = string(GVisor), string(Native)
	dirs := map[Program]string{GVisor: filepath.Join(dir, "gvisor", "engine"), Native: filepath.Join(dir, "native", "engine")}
	unused := openProgram(t, engine, dirs[GVisor])
	unused.file.Close()
	old := time.Now().Add(-8 * 24 * time.Hour)
	if err := os.Chtimes(unused.path, old, old); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"native", "the next version"} {
		p := newProgram(t, text)
		p.name = native.name
		exe := openProgram(t, p, dirs[Native])
		runProgram(t, exe)
		if got := filepath.Base(exe.path); got != "atoll-native" {
			t.Errorf("the file is called %s", got)
		}
	}
	runProgram(t, unused)
}

// Path returns one file for each program, and the same one to each call. Programs that are built without them say so.
func TestPath(t *testing.T) {
	for _, p := range []Program{GVisor, Native} {
		dir := t.TempDir()
		path, err := p.Path(dir)
		if len(p.findPacked().data) == 0 {
			if err == nil || !strings.HasSuffix(err.Error(), "without "+string(p)) {
				t.Errorf("%s: %q, %v", p, path, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := p.Path(dir); again != path || err != nil || filepath.Base(path) != string(p) {
			t.Errorf("%s: %q, then %q, %v", p, path, again, err)
		}
		out, err := exec.Command(path).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), string(p)+": this program is a part of atoll") {
			t.Errorf("%s printed %q, %v", p, out, err)
		}
	}
}

func TestOpenMemory(t *testing.T) {
	data, err := newProgram(t, "memory").unpackData()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := openMemory("atoll-test", data)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.file.Close()
	runProgram(t, exe)
	if f, err := os.OpenFile(exe.path, os.O_WRONLY, 0); err == nil {
		_, err = f.Write([]byte("x"))
		f.Close()
		if err == nil {
			t.Error("the sealed file can be written")
		}
	}
}

// A program that the system has dropped from memory is there as a whole when it is opened again.
func TestPagesOfProgram(t *testing.T) {
	dir := t.TempDir()
	p := newProgram(t, "one")
	f := openProgram(t, p, dir).file
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	again := openProgram(t, p, dir)
	info, err := again.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: uint64(info.Size())}, &st, 0); err != nil {
		t.Skip("cachestat: ", err) // the kernel is older than 6.5
	}
	if got := int64(st.Cache) * int64(os.Getpagesize()); got < info.Size() {
		t.Errorf("%d bytes of %d are in memory", got, info.Size())
	}
	runProgram(t, again)
}
