// Package files implements the file system of a supervised sandbox from the host's side.
//
// It reads and writes files on volumes and on other directories of the host
// directly, which is fast and works while the sandbox is stopped. All
// other files exist inside only, and it reaches them through a guest. A
// symbolic link that leads out of a host directory has a meaning inside
// only, so such a name is the guest's business, too; but not if the FS is
// confined to a directory (sub.go).
package files

import (
	"context"
	"errors"
	"io"
	"iter"
	"path"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// A Mount is a mount of the sandbox at Target, a clean absolute path.
type Mount struct {
	Source   string // directory or file of the host; "" if it exists inside only
	Target   string
	ReadOnly bool
}

// A View is the composition of a sandbox's files at one moment.
type View struct {
	Workdir  string // base of relative names
	Mounts   []Mount
	Root     int // uid and gid on the host of the root user inside; 0 if they are the same
	UID, GID int // owner on the host of new files; -1 leaves it to the system
	// Inside returns the file system as the inside sees it. Its error is the error of every
	// call that needs it.
	Inside func(ctx context.Context) (atoll.FS, error)
	// Explain returns the error of a call that failed inside; nil leaves it as it is.
	Explain func(err error) error
	// Live is the file system as running programs see it; nil if none run. It makes the changes
	// on directories of the host for which programs that watch them get events, if it can.
	Live atoll.FS
}

// An FS is an atoll.FS that holds no resources between calls.
type FS struct {
	view       func() (View, error)
	confinedTo []string // what it is confined to, each below the one before
}

// New returns a file system that calls view for each call and works on the result. The
// error of view is the error of the call.
func New(view func() (View, error)) *FS { return &FS{view: view} }

// A routedFS is the file system that some names are on.
type routedFS struct {
	atoll.FS
	root int
	live atoll.FS // of View
}

// mapOwner translates the owner of a file on the host to that inside.
func (p routedFS) mapOwner(info *atoll.FileInfo) {
	if p.root != 0 && info.UID == p.root {
		info.UID, info.GID = 0, 0
	}
}

// An extent says which files a call concerns besides its names.
type extent struct {
	tree   bool // all files below the names: a directory with another mount below it is not enough
	follow bool // if the names are links, their targets
}

var (
	entry  = extent{}
	file   = extent{follow: true}
	branch = extent{tree: true}
	tree   = extent{tree: true, follow: true}
)

// withFS calls fn with the file system that the names are on, and with the names made
// absolute: the host directory that has all of them, or else the inside, also if it turns
// out that a name leads there.
func (f *FS) withFS(ctx context.Context, op string, e extent, names []string, fn func(p routedFS, names []string) error) error {
	v, err := f.view()
	if err != nil {
		return err
	}
	if len(f.confinedTo) > 0 {
		return f.withConfinedFS(ctx, op, &v, e, names, fn)
	}
	abs := make([]string, len(names))
	for i, name := range names {
		abs[i] = absolutePath(v.Workdir, name)
	}
	if d, _ := v.openHostDir(ctx, e, abs); d != nil {
		defer d.Close()
		if err := fn(routedFS{d, v.Root, v.Live}, abs); !leadsOut(err) {
			return err
		}
	}
	inside, err := v.Inside(ctx)
	if err != nil {
		return v.explainError(err)
	}
	return v.explainError(fn(routedFS{FS: inside}, abs))
}

// explainError returns the error of a call inside.
func (v *View) explainError(err error) error {
	if err == nil || v.Explain == nil {
		return err
	}
	return v.Explain(err)
}

// changeFS is withFS for a change of names or attributes: running programs get events of it if
// it succeeds inside. If it does not, the host does it, or says why not.
func (f *FS) changeFS(ctx context.Context, op string, e extent, names []string, fn changeFunc) error {
	v, err := f.view()
	if err != nil {
		return err
	}
	if fs, given := f.liveFS(&v, names); fs != nil {
		live, cancel := context.WithTimeout(ctx, dirfs.LiveTime)
		defer cancel()
		if fn(live, routedFS{FS: fs}, given) == nil {
			return nil
		}
	}
	return f.withFS(ctx, op, e, names, func(p routedFS, names []string) error { return fn(ctx, p, names) })
}

// liveFS returns the live file system and the names by which it knows names, if these are on a
// directory of the host; else nil.
func (f *FS) liveFS(v *View, names []string) (atoll.FS, []string) {
	if v.Live == nil {
		return nil, nil
	}
	given, top := names, f.confinedTo
	if len(top) == 0 {
		given = make([]string, len(names))
		for i, name := range names {
			given[i] = absolutePath(v.Workdir, name)
		}
		top = given
	}
	if m := v.mountOf(absolutePath(v.Workdir, top[0])); m == nil || m.Source == "" {
		return nil, nil
	}
	return confineTo(v.Live, f.confinedTo), given
}

// A changeFunc makes a change on the file system that the names are on.
type changeFunc func(ctx context.Context, p routedFS, names []string) error

// leadsOut reports whether a name itself leads out of the host directory, which dirfs
// reports before it reads or writes anything. An archive entry that leads out is
// ErrInvalid, here as inside.
func leadsOut(err error) bool {
	return errors.Is(err, dirfs.ErrEscapes) && atoll.KindOf(err) == atoll.ErrDenied
}

// absolutePath returns name, which may be relative to dir, absolute and clean.
func absolutePath(dir, name string) string {
	if !path.IsAbs(name) {
		name = path.Join(dir, name)
	}
	return path.Clean(name)
}

// openHostDir opens the host directory that has all names; nil if there is none.
func (v *View) openHostDir(ctx context.Context, e extent, names []string) (d *dirfs.FS, on *Mount) {
	for i, name := range names {
		m := v.mountOf(name)
		if m == nil || m.Source == "" || i > 0 && m != on || e.tree && v.hasMountBelow(name) {
			return nil, nil
		}
		on = m
	}
	d, err := v.openMount(on)
	if err != nil {
		return nil, nil // the mount is a file, or has gone
	}
	for _, name := range names {
		if !e.follow {
			name = path.Dir(name)
		}
		if v.hasMountBelow(on.Target) && hasLink(ctx, d, on.Target, name) { // the link may lead to another mount
			d.Close()
			return nil, nil
		}
	}
	return d, on
}

// openMount opens the host directory of a mount.
func (v *View) openMount(m *Mount) (*dirfs.FS, error) {
	return dirfs.New(m.Target, m.Source, dirfs.Options{Workdir: v.Workdir, UID: v.UID, GID: v.GID, ReadOnly: m.ReadOnly, Live: v.Live})
}

// mountOf returns the mount that name is on, or nil.
func (v *View) mountOf(name string) *Mount {
	var on *Mount
	for i := range v.Mounts {
		m := &v.Mounts[i]
		if atOrBelow(name, m.Target) && (on == nil || len(m.Target) > len(on.Target)) {
			on = m
		}
	}
	return on
}

// hasMountBelow reports whether there is a mount below dir.
func (v *View) hasMountBelow(dir string) bool {
	for _, m := range v.Mounts {
		if isBelow(m.Target, dir) {
			return true
		}
	}
	return false
}

// isBelow reports whether name is in the tree under dir, and not dir itself.
func isBelow(name, dir string) bool {
	return name != dir && strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

func atOrBelow(name, dir string) bool { return name == dir || isBelow(name, dir) }

// hasLink reports whether a symbolic link is on the way from top to name.
func hasLink(ctx context.Context, d atoll.FS, top, name string) bool {
	for ; isBelow(name, top); name = path.Dir(name) {
		if info, err := d.Stat(ctx, name); err == nil && info.Type == atoll.TypeSymlink || leadsOut(err) {
			return true
		}
	}
	return false
}

// Read implements atoll.FS.
func (f *FS) Read(ctx context.Context, name string, offset int64) (r io.ReadCloser, info atoll.FileInfo, err error) {
	err = f.withFS(ctx, "read", file, []string{name}, func(p routedFS, names []string) (err error) {
		r, info, err = p.Read(ctx, names[0], offset)
		p.mapOwner(&info)
		return err
	})
	return r, info, err
}

// Write implements atoll.FS.
func (f *FS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (info atoll.FileInfo, err error) {
	err = f.withFS(ctx, "write", file, []string{name}, func(p routedFS, names []string) (err error) {
		info, err = p.Write(ctx, names[0], r, opts)
		p.mapOwner(&info)
		return err
	})
	return info, err
}

// Stat implements atoll.FS.
func (f *FS) Stat(ctx context.Context, name string) (info atoll.FileInfo, err error) {
	err = f.withFS(ctx, "stat", entry, []string{name}, func(p routedFS, names []string) (err error) {
		info, err = p.Stat(ctx, names[0])
		p.mapOwner(&info)
		return err
	})
	return info, err
}

// List implements atoll.FS.
func (f *FS) List(ctx context.Context, name string, recursive bool) (list []atoll.FileInfo, err error) {
	err = f.withFS(ctx, "list", tree, []string{name}, func(p routedFS, names []string) (err error) {
		list, err = p.List(ctx, names[0], recursive)
		for i := range list {
			p.mapOwner(&list[i])
		}
		return err
	})
	return list, err
}

// Mkdir implements atoll.FS.
func (f *FS) Mkdir(ctx context.Context, name string, mode uint32) error {
	return f.changeFS(ctx, "mkdir", file, []string{name}, func(ctx context.Context, p routedFS, names []string) error {
		return p.Mkdir(ctx, names[0], mode)
	})
}

// Rename implements atoll.FS.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	return f.changeFS(ctx, "rename", branch, []string{from, to}, func(ctx context.Context, p routedFS, names []string) error {
		return p.Rename(ctx, names[0], names[1])
	})
}

// Remove implements atoll.FS. Running programs see a tree move away, which takes a moment, and the
// host deletes it.
func (f *FS) Remove(ctx context.Context, name string, recursive bool) error {
	if !recursive {
		return f.changeFS(ctx, "remove", branch, []string{name}, func(ctx context.Context, p routedFS, names []string) error {
			return p.Remove(ctx, names[0], false)
		})
	}
	away := ""
	if v, err := f.view(); err == nil && len(f.confinedTo) == 0 {
		away = f.moveAway(ctx, &v, name)
	}
	if away == "" {
		return f.withFS(ctx, "remove", branch, []string{name}, func(p routedFS, names []string) error {
			return p.Remove(ctx, names[0], true)
		})
	}
	// Nobody knows the temporary name: the tree goes as a whole, or comes back.
	ctx = context.WithoutCancel(ctx)
	err := f.withFS(ctx, "remove", branch, []string{away}, func(p routedFS, names []string) error {
		return p.Remove(ctx, names[0], true)
	})
	if err == nil {
		return nil
	}
	if back := f.withFS(ctx, "rename", branch, []string{away, name}, func(p routedFS, names []string) error {
		return p.Rename(ctx, names[0], names[1])
	}); back != nil {
		return err // with the temporary name, which has the rest
	}
	return atoll.Errorf("remove", name, atoll.KindOf(err), "%s", strings.ReplaceAll(causeOf(err).Error(), path.Base(away), path.Base(name)))
}

// causeOf returns the cause of an atoll.Error, or err.
func causeOf(err error) error {
	var e *atoll.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// moveAway gives a tree without mounts a temporary name as a program inside would, and returns that
// name; "" if the tree has its own name.
func (f *FS) moveAway(ctx context.Context, v *View, name string) string {
	fs, names := f.liveFS(v, []string{name})
	if fs == nil || v.hasMountBelow(names[0]) {
		return ""
	}
	away := path.Join(path.Dir(names[0]), atoll.TempName())
	live, cancel := context.WithTimeout(ctx, dirfs.LiveTime)
	defer cancel()
	if fs.Rename(live, names[0], away) == nil {
		return away
	}
	// The answer may be lost, and not the change.
	moved := f.withFS(context.WithoutCancel(ctx), "stat", branch, []string{away}, func(p routedFS, names []string) error {
		_, err := p.Stat(context.WithoutCancel(ctx), names[0])
		return err
	})
	if moved == nil {
		return away
	}
	return ""
}

// WriteTar implements atoll.FS.
func (f *FS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	return f.withFS(ctx, "read", tree, []string{name}, func(p routedFS, names []string) error {
		return p.WriteTar(ctx, names[0], w)
	})
}

// ReadTar implements atoll.FS. A stream that has been read from cannot be unpacked again
// inside, so an archive for a directory with mounts below it goes to the inside from the
// start.
func (f *FS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	return f.withFS(ctx, "write", tree, []string{name}, func(p routedFS, names []string) error {
		return p.ReadTar(ctx, names[0], r)
	})
}

// Watch implements atoll.FS.
func (f *FS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		err := f.withFS(ctx, "watch", tree, []string{name}, func(p routedFS, names []string) error {
			for event, err := range p.Watch(ctx, names[0], recursive) {
				if err != nil {
					return err // the last pair
				}
				if !yield(event, nil) {
					return nil
				}
			}
			return nil
		})
		if err != nil {
			yield(atoll.FileEvent{}, err)
		}
	}
}

var (
	_ atoll.FS    = (*FS)(nil)
	_ atoll.SubFS = (*FS)(nil)
)
