package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	table "github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/userdb"
)

// statFile describes a file of a container, or the target of a link; nil if it does not exist.
func (p *Provider) statFile(ctx context.Context, id, name string) (*container.PathStat, error) {
	for range 2 { // the engine resolves links, but describes the last one itself
		found, err := p.engine.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: name})
		switch {
		case cerrdefs.IsNotFound(err):
			return nil, nil
		case err != nil && name != "/": // there is no specific error for a file below something that is not a directory
			if above, aboveErr := p.statFile(ctx, id, path.Dir(name)); aboveErr == nil && (above == nil || !above.Mode.IsDir()) {
				return nil, nil
			}
			return nil, p.statError(ctx, id, name, err)
		case err != nil:
			return nil, p.statError(ctx, id, name, err)
		case found.Stat.Mode&fs.ModeSymlink == 0: // Podman sets the target of all files, to their own names
			return &found.Stat, nil
		}
		name = found.Stat.LinkTarget
	}
	return nil, nil
}

// statError returns the reason for a failed request for a file. The engine answered it without a
// text, so statError asks in another way. Most often the engine cannot mount the container's
// volumes.
func (p *Provider) statError(ctx context.Context, id, name string, err error) error {
	packed, reason := p.engine.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: name})
	if reason == nil {
		packed.Content.Close()
		return err
	}
	for _, text := range []string{"not a directory", "over existing file", "is a directory"} {
		if strings.Contains(reason.Error(), text) {
			return atoll.E("mount", "", atoll.ErrInvalid, reason)
		}
	}
	return reason
}

// isExecutable reports whether the container has an executable file with that name.
func (p *Provider) isExecutable(ctx context.Context, id, name string) (bool, error) {
	st, err := p.statFile(ctx, id, name)
	return st != nil && st.Mode.IsRegular() && st.Mode&0o111 != 0, err
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// preparePlain prepares the container of a sandbox without a guest: it checks that the main
// process's program exists, and creates the work directory for the sandbox's user. If the data
// volume is fresh, it belongs to that user, too.
func (p *Provider) preparePlain(ctx context.Context, r *record, fresh bool) error {
	if err := p.checkCommand(ctx, r); err != nil {
		return err
	}
	user, err := p.findUser(ctx, r)
	if err != nil {
		return err
	}
	if fresh && (user.UID != 0 || user.GID != 0) { // while the volume is still empty
		if err := p.putDirs(ctx, r.container, atoll.DefaultWorkdir, user, "./"); err != nil {
			return err
		}
	}
	dir, missing, err := p.deepestDir(ctx, r.container, r.Spec.Workdir)
	if err == nil && len(missing) == 0 && (user.UID != 0 || user.GID != 0) {
		dir, missing, err = p.engineMadeDirs(ctx, r.container, r.Spec.Workdir)
	}
	if err != nil || len(missing) == 0 {
		return err
	}
	return p.putDirs(ctx, r.container, dir, user, missing...)
}

// engineMadeDirs returns the directories on the way to dir that the engine has created as root,
// relative to below, the directory above them.
func (p *Provider) engineMadeDirs(ctx context.Context, id, dir string) (below string, names []string, err error) {
	diff, err := p.engine.ContainerDiff(ctx, id, client.ContainerDiffOptions{})
	if err != nil {
		return "", nil, err
	}
	below = path.Clean(dir)
	for below != "/" && slices.ContainsFunc(diff.Changes, func(c container.FilesystemChange) bool {
		return c.Path == below && c.Kind == container.ChangeAdd
	}) {
		names = append(names, below)
		below = path.Dir(below)
	}
	return below, relativeNames(below, names), nil
}

// relativeNames converts the names of directories, deepest first, to names relative to below,
// topmost first.
func relativeNames(below string, names []string) []string {
	slices.Reverse(names)
	for i, name := range names {
		names[i] = strings.Trim(strings.TrimPrefix(name, below), "/") + "/"
	}
	return names
}

// checkCommand returns an error if the image does not have the program that the sandbox should
// run. The container's init, which starts it, could not report that.
func (p *Provider) checkCommand(ctx context.Context, r *record) error {
	if len(r.Spec.Cmd) == 0 {
		there, err := p.isExecutable(ctx, r.container, shellPath)
		if err == nil && !there {
			err = atoll.Errorf("start", r.ID, atoll.ErrUnsupported, "a sandbox without a guest and without a command needs %s in its image: set a command", shellPath)
		}
		return err
	}
	name := r.Spec.Cmd[0]
	paths := []string{name}
	switch {
	case path.IsAbs(name):
	case strings.Contains(name, "/"):
		paths = []string{path.Join(r.Spec.Workdir, name)}
	default:
		paths = nil
		for dir := range strings.SplitSeq(cmp.Or(table.Lookup(r.env, "PATH"), defaultPath), ":") {
			paths = append(paths, path.Join("/", dir, name))
		}
	}
	found := false
	for _, file := range paths {
		st, err := p.statFile(ctx, r.container, file)
		if err != nil {
			return err
		}
		if st != nil && st.Mode.IsRegular() && st.Mode&0o111 != 0 {
			return nil
		}
		found = found || st != nil
	}
	if found {
		return atoll.Errorf("start", r.ID, atoll.ErrExecFailed, "cannot execute %q", name)
	}
	return atoll.Errorf("start", r.ID, atoll.ErrCommandNotFound, "%q: no such command", name)
}

// findUser returns the sandbox's user, from the files of the image.
func (p *Provider) findUser(ctx context.Context, r *record) (userdb.User, error) {
	name := cmp.Or(r.Spec.User, r.user)
	if name == "" || userdb.IsRoot(name) {
		return userdb.Root(), nil
	}
	var files [2][]byte
	for i, file := range []string{"/etc/passwd", "/etc/group"} {
		data, err := p.readSmallFile(ctx, r.container, file)
		if err != nil {
			return userdb.User{}, err
		}
		files[i] = data
	}
	user, err := userdb.Find(name, files[0], files[1])
	if err != nil {
		return user, atoll.E("start", r.ID, atoll.ErrInvalid, err)
	}
	return user, nil
}

// maxAccountFile is the maximum number of bytes to read of /etc/passwd or /etc/group.
const maxAccountFile = 1 << 20

// readSmallFile reads up to maxAccountFile bytes of a file; nothing if it does not exist or is
// not a regular file.
func (p *Provider) readSmallFile(ctx context.Context, id, name string) ([]byte, error) {
	packed, err := p.engine.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: name})
	if cerrdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer packed.Content.Close()
	tr := tar.NewReader(packed.Content)
	hdr, err := tr.Next()
	if err != nil || hdr.Typeflag != tar.TypeReg {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(tr, maxAccountFile))
}

// deepestDir returns the deepest existing directory on the way to dir, and the missing ones
// below it as relative names.
func (p *Provider) deepestDir(ctx context.Context, id, dir string) (there string, missing []string, err error) {
	dir = path.Clean(dir)
	for there = dir; there != "/"; there = path.Dir(there) {
		st, err := p.statFile(ctx, id, there)
		if err != nil {
			return "", nil, err
		}
		if st != nil && !st.Mode.IsDir() {
			return "", nil, atoll.Errorf("start", "", atoll.ErrInvalid, "cannot create workdir %q in the sandbox: %q is not a directory", dir, there)
		}
		if st != nil {
			break
		}
		missing = append(missing, there)
	}
	return there, relativeNames(there, missing), nil
}

// putDirs creates directories below an existing one. Those that exist get the user as owner.
func (p *Provider) putDirs(ctx context.Context, id, below string, user userdb.User, names ...string) error {
	var packed bytes.Buffer
	tw := tar.NewWriter(&packed)
	for _, name := range names {
		hdr := &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, Uid: int(user.UID), Gid: int(user.GID)}
		if err := tw.WriteHeader(hdr); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	_, err := p.engine.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: below, Content: &packed})
	if err != nil && strings.Contains(err.Error(), "read-only") {
		return atoll.Errorf("start", "", atoll.ErrInvalid, "cannot create a directory in %q, because the root of the sandbox is read-only: %w", below, err)
	}
	return err
}
