package providertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// checkFileEscapes tries all known ways out of the sandbox. In an isolated sandbox an absolute path is
// a path inside, so the secret is a file on the machine of the test.
func checkFileEscapes(t *testing.T, h *harness) {
	secret := h.newSecret(t)
	sb := h.plainSandbox(t)
	up := strings.Repeat("../", 20)
	h.makeLink(t, sb, "link", secret.file)
	h.makeLink(t, sb, "parent", secret.dir)
	h.makeLink(t, sb, "climb", up+secret.file)
	h.makeLink(t, sb, "chain", "link")
	h.makeLink(t, sb, "dangling", secret.dir+"/new")
	f := atoll.Files(sb)
	outside := []string{secret.file, up + secret.file, "x/../" + up + secret.file, "link", "parent/secret", "climb", "chain"}
	for _, name := range outside {
		if got, err := atoll.ReadFile(h.newContext(t), sb, name); err == nil && strings.Contains(string(got), secret.text) {
			t.Errorf("ReadFile(%s) read the secret", name)
		}
		atoll.WriteFile(h.newContext(t), sb, name, []byte("overwritten"), 0)
	}
	for _, name := range []string{secret.dir + "/new", "parent/new", "dangling", up + secret.dir + "/new"} {
		atoll.WriteFile(h.newContext(t), sb, name, []byte("planted"), 0)
		f.Mkdir(h.newContext(t), name+"/dir", 0o755)
	}
	for _, name := range []string{secret.dir, "parent/", "parent/.", up + secret.dir} {
		list, _ := f.List(h.newContext(t), name, true)
		if slices.ContainsFunc(list, func(f atoll.FileInfo) bool { return f.Name == secret.canary }) {
			t.Errorf("List(%s) = %+v", name, list)
		}
		var buf bytes.Buffer
		if f.WriteTar(h.newContext(t), name, &buf); strings.Contains(buf.String(), secret.text) {
			t.Errorf("WriteTar(%s) packed the secret", name)
		}
		f.ReadTar(h.newContext(t), name, packEntries(t, tar.Header{Name: "new", Typeflag: tar.TypeReg, Mode: 0o644}))
	}
	f.Rename(h.newContext(t), secret.file, "stolen")
	f.Rename(h.newContext(t), "parent/secret", "stolen")
	f.Remove(h.newContext(t), "parent/secret", true)
	f.Remove(h.newContext(t), secret.file, false)
	if err := f.Remove(h.newContext(t), "parent", true); err != nil {
		t.Errorf("Remove of the link itself: %v", err)
	}
	secret.checkUntouched(t)
}

// checkTarRoundTrip packs a tree in one sandbox, unpacks it in another, and compares the files.
func checkTarRoundTrip(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	h.writeFile(t, sb, "tree/file", "content")
	h.writeFile(t, sb, "tree/sub/odd name\n", "odd")
	if err := atoll.Files(sb).Mkdir(h.newContext(t), "tree/empty", 0o700); err != nil {
		t.Fatalf("Mkdir: %v", err)
	}
	if _, err := atoll.Files(sb).Write(h.newContext(t), "tree/run", strings.NewReader("#!"), atoll.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatalf("Write: %v", err)
	}
	h.makeLink(t, sb, "tree/link", "sub/odd name\n")
	var packed bytes.Buffer
	if err := atoll.Files(sb).WriteTar(h.newContext(t), "tree", &packed); err != nil {
		t.Fatalf("WriteTar: %v", err)
	}
	other := h.plainSandbox(t)
	if err := atoll.Files(other).ReadTar(h.newContext(t), "new/place", &packed); err != nil {
		t.Fatalf("ReadTar: %v", err)
	}
	before, err := atoll.Files(sb).List(h.newContext(t), "tree", true)
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	after, err := atoll.Files(other).List(h.newContext(t), "new/place", true)
	if err != nil || len(after) != len(before) {
		t.Fatalf("List: %d entries, %v; want %d", len(after), err, len(before))
	}
	for i, b := range before {
		a := after[i]
		if strings.TrimPrefix(a.Path, "/work/new/place") != strings.TrimPrefix(b.Path, "/work/tree") ||
			a.Type != b.Type || a.Mode != b.Mode || a.Target != b.Target || a.Type == atoll.TypeFile && a.Size != b.Size {
			t.Errorf("unpacked %+v, packed %+v", a, b)
		}
	}
	h.checkContent(t, other, "new/place/link", "odd")
	var one bytes.Buffer
	if err := atoll.Files(sb).WriteTar(h.newContext(t), "tree/file", &one); err != nil {
		t.Fatalf("WriteTar of a file: %v", err)
	}
	hdr, err := tar.NewReader(&one).Next()
	if err != nil || hdr.Typeflag != tar.TypeReg || hdr.Size != int64(len("content")) {
		t.Errorf("the tar of a file begins with %+v, %v", hdr, err)
	}
}

// checkTarHoles packs and unpacks a file of holes.
func checkTarHoles(t *testing.T, h *harness) {
	const size, at, most = 48 << 20, 20<<20 + 7, 4 << 20
	sb := h.plainSandbox(t)
	f := atoll.Files(sb)
	if err := f.Mkdir(h.newContext(t), "tree", 0); err != nil {
		t.Fatalf("Mkdir: %v", err)
	}
	file := h.openFile(t, f, "tree/sparse", atoll.OpenOptions{Write: true, Create: true})
	h.writeAt(t, file, "data", at)
	if err := atoll.ChangeFile(h.newContext(t), f, "tree/sparse", atoll.FileChange{Size: new(int64(size))}); err != nil {
		t.Fatalf("ChangeFile: %v", err)
	}
	var packed, again bytes.Buffer
	err := errors.Join(f.WriteTar(h.newContext(t), "tree", &packed), f.ReadTar(h.newContext(t), "copy", bytes.NewReader(packed.Bytes())),
		f.WriteTar(h.newContext(t), "copy", &again))
	if err != nil {
		t.Fatalf("WriteTar and ReadTar: %v", err)
	}
	if packed.Len() > most || again.Len() > most {
		t.Errorf("the tar of a file of holes has %d bytes, and that of its copy %d", packed.Len(), again.Len())
	}
	if info := h.statFile(t, sb, "copy/sparse"); info.Size != size {
		t.Errorf("the copy of the file has %d bytes, want %d", info.Size, size)
	}
	data := make([]byte, 6)
	if _, err := h.openFile(t, f, "copy/sparse", atoll.OpenOptions{Read: true}).ReadAt(h.newContext(t), data, at-1); err != nil || string(data) != "\x00data\x00" {
		t.Errorf("the copy of the file has %q, %v", data, err)
	}
}

// checkTarEscapes unpacks tars with entries that lead out.
func checkTarEscapes(t *testing.T, h *harness) {
	secret := h.newSecret(t)
	reg := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	hard := func(name, to string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to} }
	up := strings.Repeat("../", 20)
	for i, evil := range [][]tar.Header{
		{reg("../escaped")},
		{reg("a/../../escaped")},
		{reg(up + secret.dir + "/new")},
		{link("l", secret.dir), reg("l/new")},
		{link("l", up+secret.dir), reg("l/new")},
		{link("l", "../.."), reg("l/escaped")},
		{link("l", "../escaped"), reg("l")},
		{hard("l", secret.file)},
		{hard("l", "../../victim")},
	} {
		sb := h.plainSandbox(t)
		for _, base := range h.baseDirs() {
			h.writeFile(t, sb, base+"/victim", "unharmed")
			dir := base + "/t" + strconv.Itoa(i)
			err := atoll.Files(sb).ReadTar(h.newContext(t), dir+"/in", packEntries(t, append(evil, reg("after"))...))
			if last := evil[len(evil)-1]; last.Name == "l" && last.Typeflag == tar.TypeReg && err == nil {
				h.checkMissing(t, sb, dir+"/escaped") // ReadTar may replace the link instead of refusing it
			} else {
				wantKind(t, "ReadTar of "+last.Name+" -> "+last.Linkname, err, atoll.ErrInvalid)
				h.checkMissing(t, sb, dir+"/in/after")
			}
			h.checkMissing(t, sb, base+"/escaped")
			h.checkMissing(t, sb, dir+"/escaped")
			h.checkContent(t, sb, base+"/victim", "unharmed")
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	secret.checkUntouched(t)
}

// checkWatch checks the events of a recursive Watch.
func checkWatch(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	h.writeFile(t, sb, "d/old", "x")
	ctx, cancel := context.WithCancel(h.newContext(t))
	defer cancel()
	events := make(chan atoll.FileEvent, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range atoll.Files(sb).Watch(ctx, "d", true) {
			if err != nil {
				return
			}
			events <- ev
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	expect := func(want atoll.FileEvent) {
		t.Helper()
		timeout := time.After(h.shortLimit())
		for {
			select {
			case ev := <-events:
				if ev == want {
					return
				}
				if want.Type == atoll.FileSynced {
					t.Fatalf("the first event is %+v, want synced", ev)
				}
			case <-timeout:
				t.Fatalf("no event %+v", want)
			}
		}
	}
	expect(atoll.FileEvent{Type: atoll.FileSynced})
	h.writeFile(t, sb, "d/new", "x")
	expect(atoll.FileEvent{Type: atoll.FileCreated, Path: "/work/d/new"})
	if h.runForCode(t, sb, scriptCommand("store", "d/old", "changed from inside")) != 0 {
		t.Error("the process could not write")
	}
	expect(atoll.FileEvent{Type: atoll.FileWritten, Path: "/work/d/old"})
	if err := atoll.Files(sb).Mkdir(h.newContext(t), "d/sub", 0o755); err != nil {
		t.Errorf("Mkdir: %v", err)
	}
	expect(atoll.FileEvent{Type: atoll.FileCreated, Path: "/work/d/sub"})
	h.writeFile(t, sb, "d/sub/deep", "x")
	expect(atoll.FileEvent{Type: atoll.FileCreated, Path: "/work/d/sub/deep"})
	if err := atoll.Files(sb).Remove(h.newContext(t), "d/new", false); err != nil {
		t.Errorf("Remove: %v", err)
	}
	expect(atoll.FileEvent{Type: atoll.FileRemoved, Path: "/work/d/new"})
}

// packEntries packs entries without content.
func packEntries(t *testing.T, entries ...tar.Header) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if err := w.WriteHeader(&e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// checkEventsInside changes files from outside below a directory that a program inside watches.
func checkEventsInside(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	f := atoll.Files(sb)
	h.writeFile(t, sb, "d/old", "x")
	h.writeFile(t, sb, "d/gone", "x")
	if h.runForCode(t, sb, scriptCommand("notice", "no/dir")) == 99 {
		t.Skip("the image has no python3 with ctypes to watch with")
	}
	watcher, events := h.startReady(t, sb, scriptCommand("notice", "d"))
	for name, change := range map[string]func() error{
		"new": func() error { return atoll.WriteFile(h.newContext(t), sb, "d/new", []byte("x"), 0) },
		"old": func() error { return atoll.WriteFile(h.newContext(t), sb, "d/old", []byte("y"), 0) },
		"only": func() error {
			_, err := f.Write(h.newContext(t), "d/only", strings.NewReader("x"), atoll.WriteOptions{NoClobber: true})
			return err
		},
		"made": func() error { return f.Mkdir(h.newContext(t), "d/made", 0) },
		"gone": func() error { return f.Remove(h.newContext(t), "d/gone", false) },
		"unpacked": func() error {
			return f.ReadTar(h.newContext(t), "d", packEntries(t, tar.Header{Name: "unpacked", Typeflag: tar.TypeReg, Mode: 0o644}))
		},
		"edited": func() error {
			file := h.openFile(t, f, "d/edited", atoll.OpenOptions{Write: true, Create: true})
			h.writeAt(t, file, "x", 0)
			return file.Close()
		},
	} {
		if err := change(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		events.waitForText(t, h, "\n"+name+"\n")
	}
	h.checkContent(t, sb, "d/old", "y")
	h.checkList(t, sb, "d", false, "/work/d/edited", "/work/d/made", "/work/d/new", "/work/d/old", "/work/d/only", "/work/d/unpacked")
	if err := watcher.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
		t.Errorf("Signal: %v", err)
	}
}
