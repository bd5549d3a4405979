//go:build unix

package dirfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Links that lead to the directory work, by whichever of its names.
func TestSubOfSystem(t *testing.T) {
	base := t.TempDir()
	for name, text := range map[string]string{"real/in/f": "in", "real/out": "out"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755), os.WriteFile(filepath.Join(base, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"door": "real/in", "house": "real", "real/in/by-real": base + "/real/in/f", "real/in/by-door": base + "/door/f",
		"real/in/by-house": base + "/house/in/f", "real/in/out": base + "/real/out", "real/in/up": "../out",
	} {
		if err := os.Symlink(target, filepath.Join(base, name)); err != nil {
			t.Fatal(err)
		}
	}
	all := System(Options{Workdir: base, UID: -1, GID: -1})
	for dir, absolute := range map[string][]string{ // links that are known to be below it
		"real/in": {"by-real"}, "door": {"by-real", "by-door"}, base + "/house/in": {"by-real", "by-house"},
	} {
		sub, err := all.Confine(t.Context(), "test", dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"f", "by-real", "by-door", "by-house", "out", "up"} {
			got, _, err := readAll(sub, name, 0)
			want := name == "f" || slices.Contains(absolute, name)
			if want && (got != "in" || err != nil) || !want && atoll.KindOf(err) != atoll.ErrDenied {
				t.Errorf("%s below %s: %q, %v", name, dir, got, err)
			}
		}
		if err := sub.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if _, err := sub.Stat(t.Context(), "f"); atoll.KindOf(err) != atoll.ErrStopped {
			t.Errorf("Stat after Close: %v", err)
		}
	}
}

// No call blocks on a pipe in the place of the directory.
func TestSubOfAPipe(t *testing.T) {
	for _, under := range []string{"os.Root", "system"} {
		f, dir, _ := newTree(t)
		if under == "system" {
			f = System(Options{Workdir: dir, UID: -1, GID: -1})
		}
		if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := atoll.SubFiles(f, "pipe").Stat(context.Background(), ".")
			done <- err
		}()
		select {
		case err := <-done:
			if atoll.KindOf(err) != atoll.ErrInvalid {
				t.Errorf("%s: %v, want %s", under, err, atoll.ErrInvalid)
			}
		case <-time.After(testenv.Scale(10 * time.Second)):
			t.Fatalf("%s: it waits for the other end", under)
		}
	}
}

// Neither if it was a directory a moment ago.
func TestSubOfWhatBecomesAPipe(t *testing.T) {
	f, dir, _ := newTree(t)
	pipe, in := filepath.Join(dir, "pipe"), filepath.Join(dir, "in")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o644), os.Mkdir(in, 0o755)); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for was := in + ".was"; ; {
			select {
			case <-stop:
				return
			default:
				_ = errors.Join(os.Rename(in, was), os.Rename(pipe, in), os.Rename(in, pipe), os.Rename(was, in))
			}
		}
	}()
	defer func() { close(stop); <-done }()
	for _, all := range []atoll.FS{f, System(Options{Workdir: dir, UID: -1, GID: -1})} {
		sub := atoll.SubFiles(all, "in")
		for range 2000 {
			_, _ = sub.Stat(t.Context(), ".")
		}
	}
}

// Chmod never changes the target of a link that replaced the file meanwhile; then it
// fails with ErrConflict, ErrDenied or ErrNotExist.
func TestChmodOfWhatBecomesALink(t *testing.T) {
	for _, under := range []string{"os.Root", "system"} {
		f, dir, outside := newTree(t)
		all := f
		if under == "system" {
			all = System(Options{Workdir: dir, UID: -1, GID: -1})
		}
		before, err := os.Stat(outside)
		if err != nil {
			t.Fatal(err)
		}
		sub, err := all.Confine(t.Context(), "test", ".")
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		in := filepath.Join(dir, "in")
		if err := os.Mkdir(in, 0o755); err != nil {
			t.Fatal(err)
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for was := in + ".was"; ; {
				select {
				case <-stop:
					return
				default:
					_ = errors.Join(os.Rename(in, was), os.Symlink(outside, in), os.Remove(in), os.Rename(was, in))
				}
			}
		}()
		for range 20_000 {
			err := wrapError("chmod", "in", sub.tree.Chmod("in", 0o700))
			if k := atoll.KindOf(err); err != nil && !slices.Contains([]atoll.Kind{atoll.ErrDenied, atoll.ErrNotExist, atoll.ErrConflict}, k) {
				t.Errorf("%s: %v (%s)", under, err, k)
				break
			}
		}
		close(stop)
		<-done
		if after, err := os.Stat(outside); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%s: outside has mode %v, %v, had %v", under, after.Mode(), err, before.Mode())
		}
	}
}

// No call leaks a descriptor.
func TestSubKeepsNothingOpen(t *testing.T) {
	f, dir, outside := newTree(t)
	mustWrite(t, f, "a/b/f", "x", atoll.WriteOptions{})
	if err := os.Symlink(outside, filepath.Join(dir, "a/out")); err != nil {
		t.Fatal(err)
	}
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	before := open()
	for _, all := range []atoll.FS{f, System(Options{Workdir: dir, UID: -1, GID: -1})} {
		sub := atoll.SubFiles(atoll.SubFiles(all, "a"), "b")
		for _, name := range []string{"f", ".", "..", "../out", "no", "no/deeper"} {
			if r, _, err := sub.Read(t.Context(), name, 0); err == nil {
				r.Close()
			}
			_, _ = sub.Stat(t.Context(), name)
			_, _ = sub.List(t.Context(), name, true)
			_ = sub.Remove(t.Context(), name+"/x", true)
			_ = sub.Rename(t.Context(), name, name+"/x")
			for range sub.Watch(t.Context(), name, true) {
				break
			}
		}
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors are open, before there were %d", after, before)
	}
}

// The names of the directory in absolute links do not grow without bound.
func TestSubOfManyLinks(t *testing.T) {
	f, dir, _ := newTree(t)
	at := ""
	for i := range 24 {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, at, "d"), 0o755), os.Symlink("d", filepath.Join(dir, at, "l"))); err != nil {
			t.Fatal(err)
		}
		at = filepath.Join(at, "d")
		next, err := f.Confine(t.Context(), "test", "l")
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if f = next; len(f.roots) > 4+2*i {
			t.Fatalf("%d names after %d links", len(f.roots), i+1)
		}
	}
}

// randomTree creates a tree of directories, files and links, some of which lead out.
func randomTree(t *testing.T, r *rand.Rand, dir string) (names []string) {
	t.Helper()
	parts := []string{"a", "b", "c"}
	name := func() string {
		var list []string
		for range 1 + r.IntN(3) {
			list = append(list, parts[r.IntN(len(parts))])
		}
		return strings.Join(list, "/")
	}
	targets := append(slices.Clone(parts), "..", ".", "../..", "../a", "a/../b", "a/b/../../c", "../../outside", "b/", "./c/.", "no", dir, dir+"/a", "/etc", "a//b")
	for range 12 {
		n := name()
		names = append(names, n)
		full := filepath.Join(dir, n)
		_ = os.MkdirAll(filepath.Dir(full), 0o755) // what is in the way stays there
		switch r.IntN(3) {
		case 0:
			_ = os.Mkdir(full, 0o755)
		case 1:
			_ = os.WriteFile(full, []byte(n), 0o644)
		case 2:
			_ = os.Symlink(targets[r.IntN(len(targets))], full)
		}
	}
	return append(names, "a", "b", "c", "..", "a/..", "no/x", "a/b/c/no")
}

// Every operation of a beneathTree has the same result as with os.Root.
func TestBeneathIsLikeOSRoot(t *testing.T) {
	for seed := range uint64(100) {
		base := t.TempDir()
		var trees [2]tree
		var names []string
		for i, open := range []func(string) (tree, error){openRooted, openBeneath} {
			r := rand.New(rand.NewPCG(seed, 1))
			dir := filepath.Join(base, fmt.Sprint(i), "dir")
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.Mkdir(filepath.Join(base, fmt.Sprint(i), "outside"), 0o755)); err != nil {
				t.Fatal(err)
			}
			names = randomTree(t, r, dir)
			var err error
			if trees[i], err = open(dir); err != nil {
				t.Fatal(err)
			}
			defer trees[i].Close()
		}
		r := rand.New(rand.NewPCG(seed, 2))
		for range 20 {
			op, from, to := r.IntN(12), names[r.IntN(len(names))], names[r.IntN(len(names))]
			got, want := applyOperation(trees[1], op, from, to), applyOperation(trees[0], op, from, to)
			if got != want {
				t.Errorf("seed %d: operation %d on %s and %s: %s, os.Root: %s", seed, op, from, to, got, want)
			}
		}
		if got, want := describeTree(t, filepath.Join(base, "1")), describeTree(t, filepath.Join(base, "0")); got != want {
			t.Errorf("seed %d: the tree is\n%s\nthat of os.Root\n%s", seed, got, want)
		}
		if t.Failed() {
			return
		}
	}
}

// applyOperation does something and says how it went.
func applyOperation(t tree, op int, from, to string) string {
	var err error
	said := ""
	info := func(i fs.FileInfo, ierr error) {
		if err = ierr; err == nil {
			said = i.Name() + i.Mode().String()
		}
	}
	switch op {
	case 0:
		var f *os.File
		if f, err = t.OpenFile(from, openFlags, 0); err == nil {
			info(f.Stat())
			f.Close()
		}
	case 1:
		info(t.Stat(from))
	case 2:
		info(t.Lstat(from))
	case 3:
		said, err = t.Readlink(from)
		said = filepath.Base(said)
	case 4:
		err = t.Mkdir(from, 0o750)
	case 5:
		err = t.Rename(from, to)
	case 6:
		err = t.Link(from, to)
	case 7:
		err = t.Remove(from)
	case 8:
		if !strings.HasSuffix(from, "..") { // the root itself is never removed
			err = t.RemoveAll(from)
		}
	case 9:
		err = t.Symlink(to, from)
	case 10:
		var f *os.File
		if f, err = t.OpenFile(from, createFlags, 0o640); err == nil {
			f.Close()
		}
	case 11:
		var sub tree
		if sub, err = t.OpenRoot(from); err == nil {
			info(sub.Stat("."))
			sub.Close()
		}
	}
	if err != nil {
		if isEscape(err) {
			return "escapes"
		}
		return rootCause(err).Error()
	}
	return said
}

// describeTree describes all that is below a directory.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			info, _ := d.Info()
			all = append(all, strings.TrimPrefix(name, dir)+" "+info.Mode().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}
