package providertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var subPromises = []promise{
	{"names are relative to the directory, and paths are absolute", []need{needFiles}, checkSubNames},
	{"each call looks up the directory, follows links to it, and never makes, moves or removes it", []need{needFiles}, checkSubLookup},
	{"no call leaves the directory by .., an absolute name or a link", []need{needFiles}, checkSubEscapes},
	{"links that stay in the directory are followed, absolute ones too", []need{needFiles}, checkSubLinks},
	{"a nested directory is confined to both directories", []need{needFiles}, checkSubNested},
	{"a mount below the directory belongs to it", []need{needFiles, needVolumes}, checkSubMounts},
	{"the work directory of a stopped sandbox is confined too", []need{needFiles, needVolumes}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p := h.newConfinedDir(t, sb, "/work")
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		p.checkDenied(t, h)
	}},
	{"a process that swaps directories for links leads no call out", []need{needFiles}, raceLinks},
	{"calls to a confined directory end with their context and their sandbox", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "in/f", "x")
		in := atoll.SubFiles(atoll.Files(sb), "in")
		ended, cancel := context.WithCancel(h.newContext(t))
		cancel()
		_, err := in.Stat(ended, "f")
		wantCtx(t, "Stat with a context that has ended", err, context.Canceled)
		ctx, cancel := context.WithCancel(h.newContext(t))
		defer cancel()
		for ev, err := range in.Watch(ctx, ".", true) {
			if err != nil {
				wantCtx(t, "Watch", err, context.Canceled)
			} else if ev.Type == atoll.FileSynced {
				cancel()
			}
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		_, err = in.Stat(h.newContext(t), "f")
		wantKind(t, "Stat in a sandbox that was removed", err, atoll.ErrNotFound)
	}},
}

// An fsCall is one method of an FS, called with a name.
type fsCall struct {
	method string
	follow bool // the method follows a link at name
	do     func(ctx context.Context, f atoll.FS, name string) error
}

// fsCalls are all methods. Renames move the existing file "own", or move to "mine".
var fsCalls = []fsCall{
	{"Read", true, func(ctx context.Context, f atoll.FS, name string) error {
		r, info, err := f.Read(ctx, name, 0)
		if err == nil {
			r.Close()
		} else if info != (atoll.FileInfo{}) {
			return errors.New("the error came with a description")
		}
		return err
	}},
	{"Write", true, func(ctx context.Context, f atoll.FS, name string) error {
		_, err := f.Write(ctx, name, strings.NewReader("planted"), atoll.WriteOptions{Mode: 0o600})
		return err
	}},
	{"Write with NoClobber", true, func(ctx context.Context, f atoll.FS, name string) error {
		_, err := f.Write(ctx, name, strings.NewReader("planted"), atoll.WriteOptions{NoClobber: true})
		return err
	}},
	{"Stat", false, func(ctx context.Context, f atoll.FS, name string) error {
		_, err := f.Stat(ctx, name)
		return err
	}},
	{"List", true, func(ctx context.Context, f atoll.FS, name string) error {
		_, err := f.List(ctx, name, false)
		return err
	}},
	{"List of all", true, func(ctx context.Context, f atoll.FS, name string) error {
		_, err := f.List(ctx, name, true)
		return err
	}},
	{"Mkdir", true, func(ctx context.Context, f atoll.FS, name string) error { return f.Mkdir(ctx, name, 0o700) }},
	{"Rename to", false, func(ctx context.Context, f atoll.FS, name string) error { return f.Rename(ctx, "own", name) }},
	{"Rename of", false, func(ctx context.Context, f atoll.FS, name string) error { return f.Rename(ctx, name, "mine") }},
	{"Remove", false, func(ctx context.Context, f atoll.FS, name string) error { return f.Remove(ctx, name, false) }},
	{"Remove of all", false, func(ctx context.Context, f atoll.FS, name string) error { return f.Remove(ctx, name, true) }},
	{"WriteTar", true, func(ctx context.Context, f atoll.FS, name string) error {
		var packed bytes.Buffer
		err := f.WriteTar(ctx, name, &packed)
		if err != nil && packed.Len() > 0 {
			return errors.New("the error came with a stream")
		}
		return err
	}},
	{"ReadTar", true, func(ctx context.Context, f atoll.FS, name string) error {
		var packed bytes.Buffer
		w := tar.NewWriter(&packed)
		for _, hdr := range []tar.Header{{Name: "planted", Typeflag: tar.TypeReg, Mode: 0o644}, {Name: ".", Typeflag: tar.TypeDir, Mode: 0o700}} {
			if err := w.WriteHeader(&hdr); err != nil {
				return err
			}
		}
		if err := w.Close(); err != nil {
			return err
		}
		return f.ReadTar(ctx, name, &packed)
	}},
	{"Watch", true, func(ctx context.Context, f atoll.FS, name string) error {
		for _, err := range f.Watch(ctx, name, true) {
			return err // of the first pair
		}
		return nil
	}},
}

// A confinedDir is a directory that an FS is confined to, with files around it.
type confinedDir struct {
	base string // contains in and the files outside
	all  atoll.FS
	in   atoll.FS
	out  []atoll.FileInfo // the files outside
	text string           // the content of each file outside
}

// newConfinedDir makes a directory with links of every kind that lead out.
func (h *harness) newConfinedDir(t *testing.T, sb atoll.Sandbox, base string) *confinedDir {
	t.Helper()
	p := &confinedDir{base: base, all: atoll.Files(sb), in: atoll.SubFiles(atoll.Files(sb), base+"/in"), text: "secret-" + atoll.NewID()}
	for _, name := range []string{"out/marker", "out/sub/marker", "in-not/marker", "marker"} {
		h.writeFile(t, sb, path.Join(base, name), p.text)
	}
	for _, name := range []string{"own", "d/f"} {
		h.writeFile(t, sb, path.Join(base, "in", name), "own")
	}
	for name, target := range map[string]string{
		"abs": base + "/out", "rel": "../out", "d/up": "../../out", "chain": "abs", "hop": "d/up", "root": "/", "back": "../in", "dir": "..",
		"file": base + "/out/marker", "relfile": "../out/marker", "chainfile": "file", "sibling": base + "/in-not/marker",
		"dangling": base + "/out/new", "reldangling": "../out/new",
	} {
		h.makeLink(t, sb, path.Join(base, "in", name), target)
	}
	p.out = p.listOutside(t, h)
	return p
}

// listOutside returns the files outside of the directory, and checks their content.
func (p *confinedDir) listOutside(t *testing.T, h *harness) []atoll.FileInfo {
	t.Helper()
	var out []atoll.FileInfo
	for _, dir := range []string{"", "out", "in-not"} {
		list, err := p.all.List(h.newContext(t), path.Join(p.base, dir), dir != "")
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		for _, info := range list {
			info.Modified = info.Modified.Round(0).UTC()
			info.Changed, info.Inode = time.Time{}, 0 // caches differ about them
			if info.Path == p.base+"/in" || strings.Contains(info.Path, "/noise") {
				continue // their times and sizes change
			}
			if out = append(out, info); info.Type != atoll.TypeFile || !strings.HasSuffix(info.Name, "marker") {
				continue
			}
			if got, err := p.readFile(h.newContext(t), p.all, info.Path); got != p.text || err != nil {
				t.Errorf("%s holds %q, %v; want %q", info.Path, got, err, p.text)
			}
		}
	}
	return out
}

// readFile returns the content of a file.
func (p *confinedDir) readFile(ctx context.Context, f atoll.FS, name string) (string, error) {
	r, _, err := f.Read(ctx, name, 0)
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return string(data), err
}

// checkUntouched checks that the files outside are unchanged.
func (p *confinedDir) checkUntouched(t *testing.T, h *harness) {
	t.Helper()
	if got := p.listOutside(t, h); !slices.Equal(got, p.out) {
		t.Errorf("the files outside are now\n%+v, were\n%+v", got, p.out)
	}
}

// checkDenied checks that no call leaves the directory by any name or link, or changes anything.
func (p *confinedDir) checkDenied(t *testing.T, h *harness) {
	t.Helper()
	names := []string{ // with the way out before the last element
		"..", "../out", "../out/marker", "../in-not/marker", "d/../../out/marker", "../../../../../../../..", "../out/new/deep",
		"/", "/etc", "/etc/passwd", p.base, p.base + "/out", p.base + "/out/marker", p.base + "/in-not", p.base + "/in/../out/marker",
		"abs/marker", "abs/sub/marker", "abs/new", "abs/new/deep", "rel/marker", "d/up/marker", "chain/marker", "hop/marker", "hop/sub/new",
		"root/etc/passwd", "root" + p.base + "/out/marker", "back/own", "dir/out/marker", "dir/in/own", "dangling/x", p.base + "/in/abs/marker",
	}
	links := []string{
		"abs", "rel", "d/up", "chain", "hop", "root", "back", "dir", "file", "relfile", "chainfile", "sibling", "dangling", "reldangling",
		p.base + "/in/file",
	}
	before := p.listInside(t, h)
	for _, c := range slices.Concat(fsCalls, editCalls) {
		for _, name := range names {
			wantKind(t, c.method+"("+name+")", c.do(h.newContext(t), p.in, name), atoll.ErrDenied)
		}
		for _, name := range links {
			if c.follow {
				wantKind(t, c.method+"("+name+"), a link", c.do(h.newContext(t), p.in, name), atoll.ErrDenied)
			}
		}
	}
	for _, name := range links {
		if info, err := p.in.Stat(h.newContext(t), name); err != nil || info.Type != atoll.TypeSymlink || info.Target == "" {
			t.Errorf("Stat(%s) = %+v, %v; want the link itself", name, info, err)
		}
	}
	if after := p.listInside(t, h); !slices.Equal(after, before) {
		t.Errorf("the files inside are now\n%q, were\n%q", after, before)
	}
	p.checkUntouched(t, h)
}

// listInside returns the paths in the directory.
func (p *confinedDir) listInside(t *testing.T, h *harness) []string {
	t.Helper()
	list, err := p.in.List(h.newContext(t), ".", true)
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	var paths []string
	for _, info := range list {
		paths = append(paths, info.Path)
	}
	return paths
}

// baseDirs returns directories for tests of confinement: the work directory on the data volume and, if
// the sandbox has its own root file system, one there.
func (h *harness) baseDirs() []string {
	return slices.Compact([]string{"/work", path.Dir(h.rootFile("x"))})
}

// checkSubEscapes checks that no call leaves the directory. Links that lead out can still be renamed
// and removed.
func checkSubEscapes(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	for _, base := range h.baseDirs() {
		h.newConfinedDir(t, sb, base).checkDenied(t, h)
	}
	p := h.newConfinedDir(t, sb, "/work/again")
	for _, link := range []string{"abs", "file", "dangling", "back"} { // the links themselves are inside
		if err := p.in.Rename(h.newContext(t), link, "d/moved"); err != nil {
			t.Errorf("Rename of the link %s: %v", link, err)
		}
		if err := p.in.Remove(h.newContext(t), "d/moved", true); err != nil {
			t.Errorf("Remove of the link %s: %v", link, err)
		}
	}
	p.checkUntouched(t, h)
}

func checkSubNames(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	for _, base := range h.baseDirs() {
		at := func(name string) string { return path.Join(base, "tree/in", name) }
		h.writeFile(t, sb, at("f"), "text")
		f := atoll.SubFiles(atoll.Files(sb), base+"/tree/x/../in/")
		p := &confinedDir{}
		for _, name := range []string{"f", "./f", "x/../f", at("f"), at("x/../f")} {
			if got, err := p.readFile(h.newContext(t), f, name); got != "text" || err != nil {
				t.Errorf("Read(%s) = %q, %v", name, got, err)
			}
		}
		if info, err := f.Write(h.newContext(t), "new/deep/g", strings.NewReader("new"), atoll.WriteOptions{Mode: 0o640}); err != nil || info.Path != at("new/deep/g") || info.Mode != 0o640 {
			t.Errorf("Write = %+v, %v", info, err)
		}
		h.checkContent(t, sb, at("new/deep/g"), "new")
		if info, err := f.Stat(h.newContext(t), "f"); err != nil || info.Path != at("f") || info.Name != "f" || info.Size != 4 {
			t.Errorf("Stat = %+v, %v", info, err)
		}
		if info, err := f.Stat(h.newContext(t), "."); err != nil || info.Path != at("") || info.Type != atoll.TypeDirectory || info.Name != "in" {
			t.Errorf("Stat(.) = %+v, %v", info, err)
		}
		if err := errors.Join(f.Mkdir(h.newContext(t), "d", 0o750), f.Rename(h.newContext(t), "f", at("d/f")), f.Remove(h.newContext(t), "new", true)); err != nil {
			t.Errorf("Mkdir, Rename, Remove: %v", err)
		}
		var packed bytes.Buffer
		if err := errors.Join(f.WriteTar(h.newContext(t), "d", &packed), f.ReadTar(h.newContext(t), "e/copy", &packed)); err != nil {
			t.Errorf("WriteTar and ReadTar: %v", err)
		}
		p.in = f
		if got, want := p.listInside(t, h), []string{at("d"), at("d/f"), at("e"), at("e/copy"), at("e/copy/f")}; !slices.Equal(got, want) {
			t.Errorf("List = %q, want %q", got, want)
		}
		for ev, err := range f.Watch(h.newContext(t), "d", true) {
			if err != nil {
				t.Errorf("Watch: %v", err)
			} else if ev.Type == atoll.FileSynced {
				h.writeFile(t, sb, at("d/watched"), "x")
				continue
			} else if want := (atoll.FileEvent{Type: atoll.FileCreated, Path: at("d/watched")}); ev != want {
				t.Errorf("Watch yielded %+v, want %+v", ev, want)
			}
			break
		}
	}
	h.writeFile(t, sb, "dir/f", "relative")
	if got, err := (&confinedDir{}).readFile(h.newContext(t), atoll.SubFiles(atoll.Files(sb), "dir"), "f"); got != "relative" || err != nil {
		t.Errorf("Read below a relative directory = %q, %v", got, err)
	}
	whole := atoll.SubFiles(atoll.Files(sb), "")
	if info, err := whole.Stat(h.newContext(t), "dir/f"); err != nil || info.Path != "/work/dir/f" {
		t.Errorf("Stat below the work directory = %+v, %v", info, err)
	}
	_, err := whole.Stat(h.newContext(t), "../etc")
	wantKind(t, "Stat outside of the work directory", err, atoll.ErrDenied)
}

// checkSubLookup checks calls before the directory exists, and after a link has replaced it.
func checkSubLookup(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	for _, base := range h.baseDirs() {
		all := atoll.Files(sb)
		f := atoll.SubFiles(all, base+"/late")
		for _, c := range slices.Concat(fsCalls, editCalls) {
			wantKind(t, c.method+" below no directory", c.do(h.newContext(t), f, "own"), atoll.ErrNotExist)
		}
		wantKind(t, "Mkdir of no directory", f.Mkdir(h.newContext(t), ".", 0), atoll.ErrNotExist)
		h.checkMissing(t, sb, base+"/late")
		h.writeFile(t, sb, base+"/late", "a file")
		_, err := f.Stat(h.newContext(t), ".")
		wantKind(t, "Stat below a file", err, atoll.ErrInvalid)
		if err := all.Remove(h.newContext(t), base+"/late", false); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		p := &confinedDir{}
		h.writeFile(t, sb, base+"/late/f", "in a directory")
		h.writeFile(t, sb, base+"/other/f", "behind a link")
		if got, err := p.readFile(h.newContext(t), f, "f"); got != "in a directory" || err != nil {
			t.Errorf("Read = %q, %v", got, err)
		}
		for what, err := range map[string]error{
			"Remove": f.Remove(h.newContext(t), ".", true), "Remove by its name": f.Remove(h.newContext(t), base+"/late", true),
			"Rename": f.Rename(h.newContext(t), ".", "x"), "Rename to": f.Rename(h.newContext(t), "f", "."),
		} {
			wantKind(t, what+" of the directory itself", err, atoll.ErrInvalid)
		}
		h.checkContent(t, sb, base+"/late/f", "in a directory")
		if err := all.Remove(h.newContext(t), base+"/late", true); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		for _, target := range []string{"other", base + "/other"} {
			h.makeLink(t, sb, base+"/late", target)
			if got, err := p.readFile(h.newContext(t), f, "f"); got != "behind a link" || err != nil {
				t.Errorf("Read behind a link to %s = %q, %v", target, got, err)
			}
			if info, err := f.Stat(h.newContext(t), base+"/late/f"); err != nil || info.Path != base+"/late/f" {
				t.Errorf("Stat behind a link to %s = %+v, %v", target, info, err)
			}
			if err := f.Mkdir(h.newContext(t), ".", 0); err != nil {
				t.Errorf("Mkdir of what is there: %v", err)
			}
		}
	}
}

// checkSubLinks checks that calls follow links that stay in the directory.
func checkSubLinks(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	for _, base := range h.baseDirs() {
		in := base + "/home/in"
		h.writeFile(t, sb, in+"/a/f", "text")
		for name, target := range map[string]string{
			"abs": in + "/a", "rel": "a", "b/up": "../a", "chain": "abs", "self": in, "file": in + "/a/f", "new": in + "/a/n", "b/new": "../a/m",
			"twice": in + "/x/../a",
		} {
			h.makeLink(t, sb, in+"/"+name, target)
		}
		h.makeLink(t, sb, base+"/home/door", "in")
		h.makeLink(t, sb, base+"/home/gate", in)
		h.makeLink(t, sb, in+"/through", base+"/home/gate/a")
		p := &confinedDir{}
		for _, dir := range []string{in, base + "/home/door", base + "/home/gate"} {
			f := atoll.SubFiles(atoll.Files(sb), dir)
			names := []string{"abs/f", "rel/f", "b/up/f", "chain/f", "self/a/f", "file", "self/self/file", "twice/f", dir + "/abs/f"}
			for _, name := range names {
				if got, err := p.readFile(h.newContext(t), f, name); got != "text" || err != nil {
					t.Errorf("Read(%s) below %s = %q, %v", name, dir, got, err)
				}
			}
			if info, err := f.Stat(h.newContext(t), "abs/f"); err != nil || info.Path != dir+"/abs/f" || info.Type != atoll.TypeFile {
				t.Errorf("Stat = %+v, %v", info, err)
			}
			list, err := f.List(h.newContext(t), "chain", true)
			if err != nil || len(list) == 0 || list[0].Path != dir+"/chain/f" {
				t.Errorf("List = %+v, %v", list, err)
			}
		}
		if got, err := p.readFile(h.newContext(t), atoll.SubFiles(atoll.Files(sb), base+"/home/gate"), "through/f"); got != "text" || err != nil {
			t.Errorf("Read through a link by the name of the directory = %q, %v", got, err)
		}
		f := atoll.SubFiles(atoll.Files(sb), in)
		for _, name := range []string{"new", "b/new", "abs/w/x"} {
			if _, err := f.Write(h.newContext(t), name, strings.NewReader(name), atoll.WriteOptions{}); err != nil {
				t.Errorf("Write(%s): %v", name, err)
			}
		}
		for name, want := range map[string]string{"n": "new", "m": "b/new", "w/x": "abs/w/x"} {
			h.checkContent(t, sb, in+"/a/"+name, want)
		}
		var packed bytes.Buffer
		if err := errors.Join(f.Mkdir(h.newContext(t), "abs/d", 0), f.Rename(h.newContext(t), "abs/n", "self/a/d/n"), f.Remove(h.newContext(t), "chain/w", true),
			f.WriteTar(h.newContext(t), "abs/d", &packed), f.ReadTar(h.newContext(t), "abs/e", &packed)); err != nil {
			t.Errorf("Mkdir, Rename, Remove, WriteTar, ReadTar through links: %v", err)
		}
		h.checkContent(t, sb, in+"/a/e/n", "new")
	}
}

// checkSubNested checks a confined directory within a confined directory.
func checkSubNested(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	for _, base := range h.baseDirs() {
		p := h.newConfinedDir(t, sb, base)
		h.makeLink(t, sb, base+"/in/d/own", base+"/in/own")
		h.makeLink(t, sb, base+"/in/d/self", base+"/in/d/f")
		h.makeLink(t, sb, base+"/in/to-d", base+"/in/d")
		for _, dir := range []string{"d", base + "/in/d", "to-d"} {
			d := atoll.SubFiles(p.in, dir)
			for _, name := range []string{"f", "self", path.Join(base, "in", path.Base(dir), "f")} {
				if got, err := p.readFile(h.newContext(t), d, name); got != "own" || err != nil {
					t.Errorf("Read(%s) below %s = %q, %v", name, dir, got, err)
				}
			}
			for _, name := range []string{"../own", "own", base + "/in/own", "up/marker", "../../out/marker"} {
				for _, c := range slices.Concat(fsCalls, editCalls) {
					if c.follow || name != "own" {
						wantKind(t, c.method+"("+name+") below "+dir, c.do(h.newContext(t), d, name), atoll.ErrDenied)
					}
				}
			}
		}
		for _, dir := range []string{"..", "../out", base + "/out", "abs", "rel", "d/up", "chain", "back", "dangling", "/"} {
			for _, c := range slices.Concat(fsCalls, editCalls) {
				wantKind(t, c.method+" below "+dir, c.do(h.newContext(t), atoll.SubFiles(p.in, dir), "marker"), atoll.ErrDenied)
			}
		}
		p.checkUntouched(t, h)
	}
}

// checkSubMounts checks a volume below the directory, of a running and of a stopped sandbox.
func checkSubMounts(t *testing.T, h *harness) {
	h.volumes = append(h.volumes, "extra")
	sb := h.createSandbox(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "extra", Target: "/work/in/deep/mount"}}})
	check := func(when string) {
		t.Helper()
		for _, dir := range []string{"/work", "in", "in/deep", "/work/in/deep/mount"} {
			f := atoll.SubFiles(atoll.Files(sb), dir)
			name := "/work/in/deep/mount/f"
			if _, err := f.Write(h.newContext(t), name, strings.NewReader(when+dir), atoll.WriteOptions{}); err != nil {
				t.Errorf("Write below %s %s: %v", dir, when, err)
			}
			h.checkContent(t, sb, name, when+dir)
			for _, name := range []string{"/etc/passwd", "/work/../etc/passwd", "../../../../../f"} {
				for _, c := range slices.Concat(fsCalls, editCalls) {
					wantKind(t, c.method+"("+name+") below "+dir+" "+when, c.do(h.newContext(t), f, name), atoll.ErrDenied)
				}
			}
		}
		f := atoll.SubFiles(atoll.Files(sb), "/work/in/deep/mount")
		for _, c := range slices.Concat(fsCalls, editCalls) {
			wantKind(t, c.method+" out of the mount "+when, c.do(h.newContext(t), f, "/work/marker"), atoll.ErrDenied)
		}
		h.checkContent(t, sb, "/work/marker", "outside")
	}
	h.writeFile(t, sb, "/work/marker", "outside")
	check("while it runs")
	if err := sb.Stop(h.newContext(t), 0); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	check("while it is stopped")
}
