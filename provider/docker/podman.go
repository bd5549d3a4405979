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

// Podman's service speaks the Engine API. Here is what it has to be asked for in other
// words.

// cgroupControllers are what of cgroups Podman can use, as it says where it speaks for
// itself. To those who take it for Docker it speaks of the machine, and a rootless
// one ignores limits that it cannot set.
func (p *Provider) cgroupControllers(ctx context.Context) ([]string, error) {
	direct := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.engine.Dialer()(ctx) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/v4.0.0/libpod/info", http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := direct.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("podman's own info: %s", answer.Status)
	}
	var info struct {
		Host struct{ CgroupControllers []string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&info); err != nil {
		return nil, fmt.Errorf("podman's own info: %w", err)
	}
	return info.Host.CgroupControllers, nil
}

// logDriver is the one of the engine's that keeps bytes as they are.
func (f engineInfo) logDriver() string {
	if f.podman {
		return "k8s-file"
	}
	return "local"
}

// adaptMounts turns the mounts of a container into what Podman understands. It makes a line
// of text of each, in which a comma begins an option, and fills new volumes with what
// the image has in their place; of a bind, in which a colon does, it can be asked not to.
func (f engineInfo) adaptMounts(h *container.HostConfig) error {
	if !f.podman {
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
			return atoll.Errorf("create", "", atoll.ErrUnsupported, "mount target %q: podman cannot be told of a %q in its name or its source's", m.Target, separator)
		}
	}
	h.Mounts = others
	return nil
}

// checkPodmanSupport is an error if Podman would leave out what the sandbox asks for, or do something
// else, and say nothing.
func (p *Provider) checkPodmanSupport(f engineInfo, spec *atoll.Spec) error {
	if !f.podman {
		return nil
	}
	if p.opts.Runtime != "" {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "podman takes no runtime from us: %s", runtimeFix)
	}
	if spec.Resources.GPUs != "" {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "podman takes no requests for GPUs")
	}
	near := p.opts.Dial == nil && strings.HasPrefix(p.engine.DaemonHost(), "unix://")
	for _, m := range spec.Mounts {
		if m.Type == atoll.MountBind && near { // podman would make a directory of that name
			if _, err := os.Stat(m.Source); errors.Is(err, fs.ErrNotExist) {
				return atoll.E("mount", "", atoll.ErrNotExist, err)
			}
		}
	}
	return nil
}

// runtimeFix is how Podman is told of a runtime.
const runtimeFix = "set runtime in its containers.conf, and no docker.runtime"

// checkPodmanTargets does for Podman what targets does: Podman follows links before it tells
// what is there, so that its files are looked at themselves. What is in the image, and
// no program has replaced, may be a link on the way that leads elsewhere than to the guest.
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
			"it cannot be seen whether a link leads a mount over the guest (%w): use a podman of this machine, and your own, with the storage driver overlay; or docker.plain without mounts", err)
	}
	if !r.plain {
		for _, name := range []string{guestDir, dataDir, atoll.DefaultWorkdir, cacheDir} {
			if st, _, err := root.findFile(name); err == nil && st.Mode()&fs.ModeSymlink != 0 {
				return atoll.Errorf("start", spec.ID, atoll.ErrInvalid, "image %s: %s is a link in it, and no mount follows it: use another image", r.Image, name)
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

// checkPodmanMount is lookThrough for one mount.
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
		case rel == "": // another mount
			continue
		case dir != "":
			files = rootLayers{dir}
		}
		st, program, err := files.findFile(rel)
		switch {
		case errors.Is(err, fs.ErrNotExist): // Podman makes it
			return nil
		case err != nil:
			return atoll.Errorf("start", spec.ID, atoll.ErrUnsupported, "mount target %q: it cannot be seen whether a program has left a link on the way there: %w", m.Target, err)
		case st.Mode()&fs.ModeSymlink == 0:
			continue
		case program || name == target:
			return linkError(spec, m, name)
		}
		led, err := p.engine.ContainerStatPath(ctx, c.ID, client.ContainerStatPathOptions{Path: at})
		if err != nil || !path.IsAbs(led.Stat.LinkTarget) {
			return linkError(spec, m, name) // it leads nowhere
		}
		at = path.Clean(led.Stat.LinkTarget)
		if _, covers := dirfs.Below(guestDir, at); covers {
			return linkError(spec, m, name)
		}
	}
	return nil
}

// locateFile returns which directory of the engine's machine has the file of a container,
// and its name there: that of the nearest mount above, apart from the one at target. It
// is "" for the root file system, and the name is for what is a mount itself.
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

// rootLayers are the directories that make up a root file system, the topmost first: that
// one has what programs have changed.
type rootLayers []string

// findLayers returns those of a container, if they can be seen from here.
func findLayers(c *container.InspectResponse) (rootLayers, error) {
	if c.GraphDriver == nil || c.GraphDriver.Data["UpperDir"] == "" {
		return nil, errors.New("podman does not tell where its files are")
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

// findFile finds a file, and says whether it is in the first layer.
func (l rootLayers) findFile(name string) (st fs.FileInfo, first bool, err error) {
	for i, dir := range l {
		st, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err == nil && st.Mode()&fs.ModeCharDevice != 0 && i < len(l)-1: // it says that the ones below are gone
			return nil, false, fs.ErrNotExist
		case err == nil:
			return st, i == 0, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return nil, false, err
		}
	}
	return nil, false, fs.ErrNotExist
}

// openRootDir lets root write to the root directory of a container, as with Docker:
// Podman's cannot be written to without capabilities.
func (c *creation) openRootDir(ctx context.Context) error {
	f, err := c.p.engineInfo(ctx)
	if err != nil || !f.podman || c.spec.ReadOnlyRoot {
		return err
	}
	return c.p.putDirs(ctx, c.container, "/", userdb.Root(), "./")
}
