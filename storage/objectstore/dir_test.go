//go:build unix

package objectstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/objectstore/objectstoretest"
)

// programVar has the test binary act as another program that uses a bucket.
const programVar = "ATOLL_TEST_BUCKET"

func TestMain(m *testing.M) {
	if what, dir, ok := strings.Cut(os.Getenv(programVar), " "); ok {
		if err := runProgram(what, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runProgram counts in the object "count", or begins to write and waits to be killed.
func runProgram(what, dir string) error {
	b, err := objectstore.OpenDir(dir)
	if err != nil {
		return err
	}
	defer b.Close()
	ctx := context.Background()
	if what == "hang" {
		_, err := b.Put(ctx, "hung", &hangingReader{strings.NewReader(strings.Repeat("x", 1<<20))}, 1<<20, objectstore.Condition{})
		return err
	}
	for done := 0; done < 50; {
		r, o, err := b.Get(ctx, "count", 0, -1)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			return err
		}
		var n int
		if _, err := fmt.Sscan(string(text), &n); err != nil {
			return err
		}
		next := fmt.Sprint(n + 1)
		switch _, err := b.Put(ctx, "count", strings.NewReader(next), int64(len(next)), objectstore.Condition{Tag: o.Tag}); {
		case err == nil:
			done++
		case atoll.KindOf(err) != atoll.ErrConflict:
			return err
		}
	}
	return nil
}

// A hanging reader prints a line after half of its bytes and blocks.
type hangingReader struct{ *strings.Reader }

func (h *hangingReader) Read(p []byte) (int, error) {
	if h.Len() <= 1<<19 {
		fmt.Println("hangs")
		select {}
	}
	return h.Reader.Read(p)
}

func (h *hangingReader) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{h})
}

func startProgram(t *testing.T, what, dir string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programVar+"="+what+" "+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return cmd, out
}

func openDir(t testing.TB, dir string) *objectstore.Dir {
	t.Helper()
	b, err := objectstore.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func putText(t testing.TB, b objectstore.Bucket, key, text string) objectstore.Object {
	t.Helper()
	o, err := b.Put(context.Background(), key, strings.NewReader(text), int64(len(text)), objectstore.Condition{})
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	return o
}

func wantKind(t *testing.T, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// fileNames lists the files in a directory, none if it doesn't exist.
func fileNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestDir(t *testing.T) {
	dir := t.TempDir()
	objectstoretest.Run(t, func(t *testing.T) objectstore.Bucket { return openDir(t, dir) },
		objectstoretest.Leftovers(func(t *testing.T, _ string) []string { return fileNames(t, filepath.Join(dir, "+temporary")) }))
	for _, name := range fileNames(t, dir) {
		if name != "+lock" && name != "+temporary" {
			t.Errorf("the directory %s is left of what was removed", name)
		}
	}
}

func TestDirOfManyPrograms(t *testing.T) {
	const programs = 4
	dir := t.TempDir()
	b := openDir(t, dir)
	putText(t, b, "count", "0")
	var all sync.WaitGroup
	for range programs {
		cmd, _ := startProgram(t, "count", dir)
		all.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("program: %v", err)
			}
		})
	}
	all.Wait()
	r, _, err := b.Get(t.Context(), "count", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if text, err := io.ReadAll(r); string(text) != fmt.Sprint(50*programs) || err != nil {
		t.Errorf("%d programs have counted to %s, %v", programs, text, err)
	}
}

func TestWhatTheKilledLeaveIsRemoved(t *testing.T) {
	dir := t.TempDir()
	cmd, out := startProgram(t, "hang", dir)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	temp := filepath.Join(dir, "+temporary")
	b := openDir(t, dir)
	if got := fileNames(t, temp); len(got) != 1 {
		t.Fatalf("a living writer has the files %q, want one", got)
	}
	for o, err := range b.List(t.Context(), "") {
		t.Errorf("List: %+v, %v", o, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	openDir(t, dir)
	if got := fileNames(t, temp); len(got) > 0 {
		t.Errorf("a killed one has left %q", got)
	}
	_, err := b.Stat(t.Context(), "hung")
	wantKind(t, "Stat", err, atoll.ErrNotExist)
}

func TestOpenDir(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "a bucket")
	b := openDir(t, dir)
	if want := "file://" + filepath.ToSlash(parent) + "/a%20bucket"; b.String() != want {
		t.Errorf("its URL is %s, want %s", b, want)
	}
	if got := fileNames(t, dir); len(got) > 0 {
		t.Errorf("opening wrote %q", got)
	}
	_, err := objectstore.OpenDir(filepath.Join(parent, "none", "b"))
	wantKind(t, "OpenDir in no directory", err, atoll.ErrNotExist)
	file := filepath.Join(parent, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = objectstore.OpenDir(file)
	wantKind(t, "OpenDir of a file", err, atoll.ErrInvalid)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err = b.Put(t.Context(), "k", strings.NewReader(""), 0, objectstore.Condition{})
	wantKind(t, "Put into what was removed", err, atoll.ErrNotExist)
	b.Close()
	_, err = b.Stat(t.Context(), "k")
	wantKind(t, "Stat of what was closed", err, atoll.ErrUnavailable)
}

func TestFilesOfADir(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	for key, want := range map[string]string{
		"latest":                         "latest+object",
		"1764/.state":                    "1764/.state+object",
		"A/con/x.":                       "%41/%63on/x%2e+object",
		"a+b":                            "a%2bb+object",
		"ü":                              "%c3%bc+object",
		"nul.tar.gz":                     "%6eul.tar.gz+object",
		"..a/...":                        "..a/..%2e+object",
		strings.Repeat("l", 127) + "x/y": strings.Repeat("l", 126) + "+high/lx/y+object",
		strings.Repeat("l", 126) + "-":   strings.Repeat("l", 126) + "+low/-+object",
	} {
		putText(t, b, key, "x")
		info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(want)))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%.20q: %v, %v; want a file %s", key, info, err, want)
		}
	}
	seen := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if folded := strings.ToLower(path); seen[folded] {
			t.Errorf("%s: another name differs in case only", path)
		} else {
			seen[folded] = true
		}
		if len(e.Name()) > 143 {
			t.Errorf("%s: a name of %d bytes", path, len(e.Name()))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A Dir ignores files of other programs and follows no links of theirs.
func TestStrangersInADir(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	b := openDir(t, dir)
	putText(t, b, "mine/x", "mine")
	target := openDir(t, outside)
	putText(t, target, "x", "theirs")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	foot := "\natoll-object-1 " + strings.Repeat("0", 32)
	for _, name := range []string{"README", "%61x+object", "A+object", "%6x+object", "+object", "x+other", "%2e%2e+object", "a+b+object"} {
		must(os.WriteFile(filepath.Join(dir, name), []byte("x"+foot), 0o600))
	}
	must(os.Symlink(outside, filepath.Join(dir, "link")))
	must(os.Symlink(dir, filepath.Join(dir, "loop")))
	must(os.Symlink(filepath.Join(outside, "x+object"), filepath.Join(dir, "away+object")))
	must(os.Mkdir(filepath.Join(dir, "dir+object"), 0o700))
	var got []string
	for o, err := range b.List(t.Context(), "") {
		if err != nil {
			t.Errorf("List: %v", err)
		}
		got = append(got, o.Key)
	}
	if !slices.Equal(got, []string{"mine/x"}) {
		t.Errorf("List: %q", got)
	}
	for _, key := range []string{"link/x", "away"} {
		if _, _, err := b.Get(t.Context(), key, 0, -1); err == nil {
			t.Errorf("Get reads %s, outside", key)
		}
	}
	for _, key := range []string{"link/y", "link/x", "link/sub/z"} {
		if _, err := b.Put(t.Context(), key, strings.NewReader("evil"), 4, objectstore.Condition{}); err == nil {
			t.Errorf("Put writes %s, outside", key)
		}
	}
	_ = b.Delete(t.Context(), "link/x", "away")
	if got := fileNames(t, outside); len(got) != 3 {
		t.Errorf("outside there is %q", got)
	}
	if r, _, err := target.Get(t.Context(), "x", 0, -1); err != nil {
		t.Error(err)
	} else if text, _ := io.ReadAll(r); r.Close() != nil || string(text) != "theirs" {
		t.Errorf("outside, there is %q", text)
	}
	putText(t, b, "away", "here") // replaces the link, not its target
	if err := b.Delete(t.Context(), "mine/x", "away"); err != nil {
		t.Error(err)
	}
}

// A Dir reports damaged files, and can delete them.
func TestDamage(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"cut":      func(path string) error { return os.Truncate(path, 5) },
		"empty":    func(path string) error { return os.Truncate(path, 0) },
		"longer":   func(path string) error { return appendTo(path, "x") },
		"a folder": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			b := openDir(t, dir)
			putText(t, b, "k", "some text")
			if err := damage(filepath.Join(dir, "k+object")); err != nil {
				t.Fatal(err)
			}
			_, _, err := b.Get(t.Context(), "k", 0, -1)
			wantKind(t, "Get", err, atoll.ErrInternal)
			if err != nil && !strings.Contains(err.Error(), "k+object") {
				t.Errorf("Get: %v", err)
			}
			if err := b.Delete(t.Context(), "k"); err != nil {
				t.Errorf("Delete: %v", err)
			}
			putText(t, b, "k", "new")
		})
	}
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// An object that shrinks while it is read ends with an error.
func TestCutWhileItIsRead(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	putText(t, b, "k", strings.Repeat("x", 100_000))
	r, _, err := b.Get(t.Context(), "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Truncate(filepath.Join(dir, "k+object"), 50_000); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); n != 50_000 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

// A caller waits for another program's lock only until its context ends.
func TestLockedDir(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	putText(t, b, "k", "x")
	var held []interface{ Close() error }
	for _, name := range fileNames(t, filepath.Join(dir, "+lock")) {
		held = append(held, holdLock(t, filepath.Join(dir, "+lock", name)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := b.Put(ctx, "k", strings.NewReader("y"), 1, objectstore.Condition{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Put: %v", err)
	}
	if err := b.Delete(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Delete: %v", err)
	}
	if got := fileNames(t, filepath.Join(dir, "+temporary")); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
	time.AfterFunc(20*time.Millisecond, func() {
		for _, h := range held {
			h.Close()
		}
	})
	putText(t, b, "k", "y")
}

// Writers and deleters don't disturb each other while directories appear and vanish.
func TestDirectoriesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 6 {
		b := openDir(t, dir)
		all.Go(func() {
			for n := range 100 {
				key := fmt.Sprintf("deep/down/here/%d", i)
				if _, err := b.Put(t.Context(), key, strings.NewReader("x"), 1, objectstore.Condition{Absent: true}); err != nil {
					t.Errorf("%d: Put: %v", n, err)
					return
				}
				if err := b.Delete(t.Context(), key); err != nil {
					t.Errorf("%d: Delete: %v", n, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A list of objects whose directory goes meanwhile is empty.
func TestListWhileTheDirectoryGoes(t *testing.T) {
	b := openDir(t, t.TempDir())
	var writing sync.WaitGroup
	defer writing.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	writing.Go(func() {
		for ctx.Err() == nil {
			if _, err := b.Put(t.Context(), "a/b/c", strings.NewReader("x"), 1, objectstore.Condition{}); err != nil {
				t.Errorf("Put: %v", err)
			}
			if err := b.Delete(t.Context(), "a/b/c"); err != nil {
				t.Errorf("Delete: %v", err)
			}
		}
	})
	for range 20_000 {
		for _, err := range b.List(t.Context(), "a/b/") {
			if err != nil {
				t.Fatalf("List: %v", err)
			}
		}
	}
}

// Lists are sorted for any keys.
func TestOrderOfADir(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", "B", "/", "-", "0", "~", "ü", "+", "%", ".", "lllllllllllllllllllllllllllllllllllllllll"}
	b := openDir(t, t.TempDir())
	var keys []string
	for range 500 {
		var key strings.Builder
		for range 1 + random.IntN(8) {
			key.WriteString(letters[random.IntN(len(letters))])
		}
		if objectstore.CheckKey(key.String()) == nil && !slices.Contains(keys, key.String()) {
			keys = append(keys, key.String())
			putText(t, b, key.String(), "x")
		}
	}
	slices.Sort(keys)
	for _, prefix := range append(letters, "", "l", "ll-", "a/", "B/a", "a/"+letters[10]) {
		var got []string
		for o, err := range b.List(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, o.Key)
		}
		want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !strings.HasPrefix(k, prefix) })
		if !slices.Equal(got, want) {
			t.Errorf("List of %q: %q, want %q", prefix, got, want)
		}
	}
}

func BenchmarkDir(b *testing.B) {
	d := openDir(b, b.TempDir())
	b.Run("Put", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			putText(b, d, fmt.Sprintf("run/%d/x", i%100), "text")
		}
	})
	b.Run("Stat", func(b *testing.B) {
		putText(b, d, "run/0/x", "text")
		for b.Loop() {
			if _, err := d.Stat(b.Context(), "run/0/x"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
