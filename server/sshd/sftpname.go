package sshd

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// parseName parses a packet that begins with a name, and returns that absolute.
func (f *fileServer) parseName(body []byte) (string, error) {
	name, _, err := cutString(body)
	if err != nil {
		return "", err
	}
	return f.absoluteName(name)
}

// parseNames parses a packet of two names.
func (f *fileServer) parseNames(body []byte) (from, to string, err error) {
	q, err := parsePayload[struct{ From, To string }](body)
	if err == nil {
		from, err = f.absoluteName(q.From)
	}
	if err == nil {
		to, err = f.absoluteName(q.To)
	}
	return from, to, err
}

// maxName is the length of the longest name, as in Linux.
const maxName = 4096

// absoluteName returns name in a form that an FS resolves as the kernel does: an FS
// cleans "..", which is wrong after a link.
func (f *fileServer) absoluteName(name string) (string, error) {
	if name == "" {
		return "", statusError{fxNoFile, "the name is empty"}
	}
	if len(name) > maxName {
		return "", statusError{fxFailure, "the name is too long"}
	}
	if !path.IsAbs(name) {
		name = f.home + "/" + name
	}
	parts := strings.Split(name, "/")
	up := -1
	for i, part := range parts {
		if part == ".." {
			up = i
		}
	}
	if up < 0 {
		return path.Clean(name), nil
	}
	base, err := f.resolveLinks(strings.Join(parts[:up+1], "/"))
	return path.Join(append([]string{base}, parts[up+1:]...)...), err
}

func parentOf(name string) string { return path.Dir(path.Clean(name)) }

const maxLinks = 40

var errLinks = statusError{fxNoFile, "too many levels of symbolic links"}

// followLinks describes a file, not a link to it.
func (f *fileServer) followLinks(name string) (atoll.FileInfo, error) {
	for range maxLinks {
		info, err := f.fs.Stat(f.ctx, name)
		if err != nil || info.Type != atoll.TypeSymlink {
			return info, err
		}
		to := info.Target
		if !path.IsAbs(to) {
			to = parentOf(name) + "/" + to
		}
		if name, err = f.absoluteName(to); err != nil {
			return atoll.FileInfo{}, err
		}
	}
	return atoll.FileInfo{}, errLinks
}

// resolveLinks returns a name without links. Its last element need not exist.
func (f *fileServer) resolveLinks(name string) (string, error) {
	done, rest := "/", name
	if below, ok := strings.CutPrefix(name, f.home+"/"); ok {
		done, rest = f.home, below // a stopped sandbox has nothing above
	}
	parts := strings.Split(rest, "/")
	for links := 0; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		last := !slices.ContainsFunc(parts, func(p string) bool { return p != "" && p != "." })
		info, err := f.fs.Stat(f.ctx, next)
		switch {
		case errors.Is(err, atoll.ErrStopped), errors.Is(err, atoll.ErrDenied):
			done = next // not to be looked up
		case errors.Is(err, atoll.ErrNotExist) && last:
			return next, nil
		case err != nil:
			return "", f.explainPath(err, next)
		case info.Type == atoll.TypeSymlink:
			if links++; links > maxLinks {
				return "", errLinks
			}
			if path.IsAbs(info.Target) {
				done = "/"
			}
			parts = append(strings.Split(info.Target, "/"), parts...)
		case info.Type != atoll.TypeDirectory && !last:
			return "", errNotDir
		default:
			done = next
		}
	}
	return done, nil
}

// explainPath finds out whether an invalid name has a file where it needs a directory, or
// is a loop of links: an FS has one kind of error for many causes.
func (f *fileServer) explainPath(err error, name string) error {
	if atoll.KindOf(err) != atoll.ErrInvalid {
		return err
	}
	if _, err := f.followLinks(name); err == errLinks {
		return errLinks
	}
	for dir := parentOf(name); dir != "/" && f.ctx.Err() == nil; dir = path.Dir(dir) {
		if info, err := f.followLinks(dir); err == nil && info.Type != atoll.TypeDirectory {
			return errNotDir
		}
	}
	return err
}

func (f *fileServer) statName(body []byte) (byte, []byte, error) {
	name, err := f.parseName(body)
	if err != nil {
		return 0, nil, err
	}
	info, err := f.followLinks(name)
	return fxpAttrs, marshalAttributes(info), f.explainPath(err, name)
}

func (f *fileServer) statLink(body []byte) (byte, []byte, error) {
	name, err := f.parseName(body)
	if err != nil {
		return 0, nil, err
	}
	info, err := f.fs.Stat(f.ctx, name)
	return fxpAttrs, marshalAttributes(info), f.explainPath(err, name)
}

func (f *fileServer) changeName(body []byte) (byte, []byte, error) { return f.changeFile(body, false) }

func (f *fileServer) changeLink(body []byte) (byte, []byte, error) { return f.changeFile(body, true) }

func (f *fileServer) changeFile(body []byte, ofLink bool) (byte, []byte, error) {
	name, rest, err := cutString(body)
	if err != nil {
		return 0, nil, err
	}
	attrs, err := parseAttributes(rest)
	if err == nil && ofLink && attrs.Size != nil {
		err = errInvalid
	}
	if err == nil {
		err = f.checkSize(attrs.Size)
	}
	if err == nil {
		name, err = f.absoluteName(name)
	}
	if err != nil {
		return 0, nil, err
	}
	attrs.NoFollow = ofLink
	return 0, nil, f.explainPath(atoll.ChangeFile(f.ctx, f.fs, name, attrs.FileChange), name)
}

func (f *fileServer) removeFile(body []byte) (byte, []byte, error) { return f.removeName(body, false) }

func (f *fileServer) removeDir(body []byte) (byte, []byte, error) { return f.removeName(body, true) }

// removeName deletes an empty directory if dir is set, else anything but a directory.
func (f *fileServer) removeName(body []byte, dir bool) (byte, []byte, error) {
	name, err := f.parseName(body)
	if err != nil {
		return 0, nil, err
	}
	info, err := f.fs.Stat(f.ctx, name)
	switch isDir := info.Type == atoll.TypeDirectory; {
	case err != nil:
	case dir && !isDir:
		err = errNotDir
	case !dir && isDir:
		err = statusError{fxFailure, "is a directory"}
	default:
		err = f.fs.Remove(f.ctx, name, false)
	}
	return 0, nil, f.explainPath(err, name)
}

// makeDir makes a directory. Unlike an FS, it neither makes parents nor accepts an
// existing directory.
func (f *fileServer) makeDir(body []byte) (byte, []byte, error) {
	name, rest, err := cutString(body)
	if err != nil {
		return 0, nil, err
	}
	attrs, err := parseAttributes(rest)
	if err == nil {
		name, err = f.absoluteName(name)
	}
	if err == nil {
		err = f.checkVacant(name)
	}
	if err != nil {
		return 0, nil, err
	}
	mode := uint32(0o777 &^ newMask)
	if attrs.Mode != nil {
		mode = *attrs.Mode &^ newMask
	}
	err = f.fs.Mkdir(f.ctx, name, mode)
	if err == nil && mode == 0 { // 0 means a default for Mkdir
		err = atoll.ChangeFile(f.ctx, f.fs, name, atoll.FileChange{Mode: &mode})
	}
	return 0, nil, err
}

// checkVacant returns an error unless name is free, and its parent is a directory.
func (f *fileServer) checkVacant(name string) error {
	if _, err := f.fs.Stat(f.ctx, name); !errors.Is(err, atoll.ErrNotExist) {
		if err == nil {
			err = errExists
		}
		return f.explainPath(err, name)
	}
	parent, err := f.followLinks(parentOf(name))
	err = f.explainPath(err, parentOf(name))
	if err == nil && parent.Type != atoll.TypeDirectory {
		err = errNotDir
	}
	return err
}

func (f *fileServer) resolveName(body []byte) (byte, []byte, error) {
	name, _, err := cutString(body)
	if err != nil {
		return 0, nil, err
	}
	if !path.IsAbs(name) {
		name = f.home + "/" + name
	}
	real, err := f.resolveLinks(name)
	return fxpName, marshalSingleName(real), err
}

func (f *fileServer) readLink(body []byte) (byte, []byte, error) {
	name, err := f.parseName(body)
	if err != nil {
		return 0, nil, err
	}
	info, err := f.fs.Stat(f.ctx, name)
	if err == nil && info.Type != atoll.TypeSymlink {
		err = statusError{fxBadMessage, "not a link"}
	}
	return fxpName, marshalSingleName(info.Target), f.explainPath(err, name)
}

// renameFile renames a file, but does not replace another one.
func (f *fileServer) renameFile(body []byte) (byte, []byte, error) {
	from, to, err := f.parseNames(body)
	if err != nil {
		return 0, nil, err
	}
	if _, err = f.fs.Stat(f.ctx, from); err == nil {
		err = f.checkVacant(to)
	}
	if err == nil {
		err = f.fs.Rename(f.ctx, from, to)
	}
	return 0, nil, f.explainPath(err, from)
}

// replaceFile renames a file, and replaces another one, or an empty directory by a
// directory, which an FS does not.
func (f *fileServer) replaceFile(body []byte) (byte, []byte, error) {
	from, to, err := f.parseNames(body)
	if err != nil {
		return 0, nil, err
	}
	old, err := f.fs.Stat(f.ctx, from)
	if err != nil {
		return 0, nil, f.explainPath(err, from)
	}
	target, err := f.fs.Stat(f.ctx, to)
	if err == nil && old.Type == atoll.TypeDirectory && old.Path != target.Path {
		if target.Type != atoll.TypeDirectory {
			return 0, nil, errNotDir
		}
		if err := f.fs.Remove(f.ctx, to, false); err != nil {
			return 0, nil, err
		}
	}
	return 0, nil, f.explainPath(f.fs.Rename(f.ctx, from, to), to)
}

func (f *fileServer) makeLink(body []byte) (byte, []byte, error) {
	from, to, err := f.parseNames(body)
	if err != nil {
		return 0, nil, err
	}
	return 0, nil, f.explainPath(atoll.LinkFile(f.ctx, f.fs, from, to), to)
}

// makeSymlink makes a symlink. An FS only takes them in an archive.
func (f *fileServer) makeSymlink(body []byte) (byte, []byte, error) {
	q, err := parsePayload[struct{ Target, Name string }](body) // in OpenSSH's order, not the draft's
	if err != nil {
		return 0, nil, err
	}
	name, err := f.absoluteName(q.Name)
	if err == nil && q.Target == "" {
		err = statusError{fxNoFile, "the target is empty"}
	}
	if err == nil {
		err = f.checkVacant(name)
	}
	if err != nil {
		return 0, nil, err
	}
	link := &tar.Header{Typeflag: tar.TypeSymlink, Name: path.Base(name), Linkname: q.Target, Mode: 0o777}
	r, w := io.Pipe()
	var packing sync.WaitGroup
	defer packing.Wait()
	defer r.Close()
	packing.Go(func() {
		tw := tar.NewWriter(w)
		err := tw.WriteHeader(link)
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
	})
	return 0, nil, f.fs.ReadTar(f.ctx, path.Dir(name), r)
}

func (f *fileServer) spaceOfName(body []byte) (byte, []byte, error) {
	name, err := f.parseName(body)
	if err != nil {
		return 0, nil, err
	}
	return f.describeSpace(name)
}

func (f *fileServer) spaceOfHandle(body []byte) (byte, []byte, error) {
	h, _, err := f.findHandle(body)
	if err != nil {
		return 0, nil, err
	}
	return f.describeSpace(h.name)
}

// describeSpace returns the reply of statvfs.
func (f *fileServer) describeSpace(name string) (byte, []byte, error) {
	space, err := atoll.SpaceOf(f.ctx, f.fs, name)
	if err != nil {
		return 0, nil, f.explainPath(err, name)
	}
	const block, nameMax = 4096, 255
	blocks := func(b atoll.Bytes) uint64 { return uint64(b) / block }
	files := func(n int64) uint64 { return uint64(max(n, 0)) }
	return fxpExtendedReply, ssh.Marshal(struct {
		Block, Fragment               uint64
		Blocks, Free, Available       uint64
		Files, FilesFree, FilesUsable uint64
		FS, Flags, NameMax            uint64
	}{
		block, block, blocks(space.Total), blocks(space.Free), blocks(space.Available),
		files(space.Files), files(space.FilesFree), files(space.FilesFree), 0, 0, nameMax,
	}), nil
}
