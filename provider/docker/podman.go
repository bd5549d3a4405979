package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/userdb"
)

// Podman's service serves the Engine API. This file has the differences.

// cgroupControllers returns the cgroup controllers that Podman can use, from its own API. Its
// Engine API describes the machine instead, and a rootless Podman ignores limits that it cannot
// set.
func (p *Provider) cgroupControllers(ctx context.Context) ([]string, error) {
	httpClient := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.engine.Dialer()(ctx) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/v4.0.0/libpod/info", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("podman's own info: %s", resp.Status)
	}
	var info struct {
		Host struct{ CgroupControllers []string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&info); err != nil {
		return nil, fmt.Errorf("podman's own info: %w", err)
	}
	return info.Host.CgroupControllers, nil
}

// logDriver returns a log driver that preserves all bytes.
func (engine engineInfo) logDriver() string {
	if engine.podman {
		return "k8s-file"
	}
	return "local"
}

// adaptMounts converts the mounts of a container for Podman. Podman turns each mount into a line
// of text, in which a comma begins an option, and fills new volumes from the image. Binds are
// lines of text too, in which a colon begins an option, and nocopy prevents the filling.
func (engine engineInfo) adaptMounts(h *container.HostConfig) error {
	if !engine.podman {
		return nil
	}
	var others []mount.Mount
	for _, m := range h.Mounts {
		options := ":rw"
		if m.ReadOnly {
			options = ":ro"
		}
		separator := ":"
		switch m.Type {
		case mount.TypeVolume:
			h.Binds = append(h.Binds, m.Source+":"+m.Target+options+",nocopy")
		case mount.TypeBind:
			h.Binds = append(h.Binds, m.Source+":"+m.Target+options)
		default:
			others = append(others, m)
			separator = ","
		}
		if strings.Contains(m.Source+m.Target, separator) {
			return atoll.Errorf("create", "", atoll.ErrUnsupported, "mount target %q: podman does not support %q in the target or the source", m.Target, separator)
		}
	}
	h.Mounts = others
	return nil
}

// checkPodmanSupport returns an error if the spec asks for what Podman would silently ignore or
// do differently. Kinds: ErrUnsupported, ErrNotExist.
func (p *Provider) checkPodmanSupport(engine engineInfo, spec *atoll.Spec) error {
	if !engine.podman {
		return nil
	}
	if p.opts.Runtime != "" {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "podman does not accept a runtime from Atoll: %s", runtimeFix)
	}
	if spec.Resources.GPUs != "" {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "podman does not accept requests for GPUs")
	}
	local := p.opts.Dial == nil && strings.HasPrefix(p.engine.DaemonHost(), "unix://")
	for _, m := range spec.Mounts {
		if m.Type == atoll.MountBind && local { // Podman would create the directory
			if _, err := os.Stat(m.Source); errors.Is(err, fs.ErrNotExist) {
				return atoll.E("mount", "", atoll.ErrNotExist, err)
			}
		}
	}
	return nil
}

// runtimeFix tells how to set a runtime for Podman.
const runtimeFix = "set runtime in its containers.conf, and unset docker.runtime"

// checkPodmanTargets is checkTargets for Podman. Podman follows links before it describes a
// file, so this looks at the files of the container directly. A link on the way to a mount is
// allowed if it comes unchanged from the image and does not lead to the guest.
func (p *Provider) checkPodmanTargets(ctx context.Context, spec *atoll.Spec, r *record) error {
	if r.plain && len(spec.Mounts) == 0 {
		return nil
	}
	found, err := p.engine.ContainerInspect(ctx, r.container, client.ContainerInspectOptions{})
	if err != nil {
		return p.wrapError(ctx, "start", spec.ID, err)
	}
	root, err := findLayers(&found.Container)
	if err != nil {
		return atoll.Errorf("start", spec.ID, atoll.ErrUnsupported,
			"cannot check for links that lead a mount over the guest (%w): use a podman on this machine, run by you, with the storage driver overlay; or docker.plain without mounts", err)
	}
	if !r.plain {
		for _, name := range []string{guestDir, dataDir, atoll.DefaultWorkdir, cacheDir} {
			if st, _, err := root.findFile(name); err == nil && st.Mode()&fs.ModeSymlink != 0 {
				return atoll.Errorf("start", spec.ID, atoll.ErrInvalid, "image %s: %s is a link, and mounts must not follow links: use another image", r.Image, name)
			}
		}
	}
	for _, m := range spec.Mounts {
		if err := p.checkPodmanMount(ctx, spec, m, &found.Container, root); err != nil {
			return err
		}
	}
	return nil
}

// checkPodmanMount checks one mount.
func (p *Provider) checkPodmanMount(ctx context.Context, spec *atoll.Spec, m atoll.Mount, c *container.InspectResponse, root rootLayers) error {
	at, target := "/", path.Clean(m.Target)
	for _, name := range pathPrefixes(m.Target) {
		at = path.Join(at, path.Base(name))
		if _, covers := dirfs.Below(guestDir, at); covers {
			return linkError(spec, m, name)
		}
		files := root
		dir, rel := locateFile(c, at, target)
		switch {
		case rel == "": // the target of another mount
			continue
		case dir != "":
			files = rootLayers{dir}
		}
		st, program, err := files.findFile(rel)
		switch {
		case errors.Is(err, fs.ErrNotExist): // Podman creates it
			return nil
		case err != nil:
			return atoll.Errorf("start", spec.ID, atoll.ErrUnsupported, "mount target %q: cannot check for links on the way to it: %w", m.Target, err)
		case st.Mode()&fs.ModeSymlink == 0:
			continue
		case program || name == target:
			return linkError(spec, m, name)
		}
		link, err := p.engine.ContainerStatPath(ctx, c.ID, client.ContainerStatPathOptions{Path: at})
		if err != nil || !path.IsAbs(link.Stat.LinkTarget) {
			return linkError(spec, m, name) // it leads nowhere
		}
		at = path.Clean(link.Stat.LinkTarget)
		if _, covers := dirfs.Below(guestDir, at); covers {
			return linkError(spec, m, name)
		}
	}
	return nil
}

// locateFile returns the directory on the engine's machine that has a file of a container, and
// the file's path below it: the directory of the nearest mount above, except the one at target.
// It returns dir "" for a file of the root file system, and rel "" for the target of a mount.
func locateFile(c *container.InspectResponse, name, target string) (dir, rel string) {
	nearest := "/"
	rel = name
	for _, m := range c.Mounts {
		below, ok := dirfs.Below(m.Destination, name)
		if ok && m.Destination != target && len(m.Destination) > len(nearest) {
			dir, nearest, rel = m.Source, m.Destination, below
		}
	}
	if rel == "." {
		rel = ""
	}
	return dir, rel
}

// rootLayers are the directories that make up a root file system, topmost first. Programs in the
// container change only the first one.
type rootLayers []string

// findLayers returns the layers of a container. It fails if this program cannot see them.
func findLayers(c *container.InspectResponse) (rootLayers, error) {
	if c.GraphDriver == nil || c.GraphDriver.Data["UpperDir"] == "" {
		return nil, errors.New("podman does not report the directories of its files")
	}
	upper := c.GraphDriver.Data["UpperDir"]
	if _, err := os.Stat(upper); err != nil {
		return nil, err
	}
	all := rootLayers{upper}
	for dir := range strings.SplitSeq(c.GraphDriver.Data["LowerDir"], ":") {
		if dir != "" {
			all = append(all, dir)
		}
	}
	return all, nil
}

// findFile finds a file, and reports whether it is in the first layer.
func (l rootLayers) findFile(name string) (st fs.FileInfo, first bool, err error) {
	for i, dir := range l {
		st, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err == nil && st.Mode()&fs.ModeCharDevice != 0 && i < len(l)-1: // a whiteout: the file was deleted from the layers below
			return nil, false, fs.ErrNotExist
		case err == nil:
			return st, i == 0, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return nil, false, err
		}
	}
	return nil, false, fs.ErrNotExist
}

// openRootDir makes the root directory of a container writable for root, as with Docker. With
// Podman, that takes a capability otherwise.
func (c *creation) openRootDir(ctx context.Context) error {
	engine, err := c.p.engineInfo(ctx)
	if err != nil || !engine.podman || c.spec.ReadOnlyRoot {
		return err
	}
	return c.p.putDirs(ctx, c.container, "/", userdb.Root(), "./")
}
