package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
)

// The guest's program in every container, on a read-only mount.
const (
	guestDir  = "/.atoll"
	guestPath = guestDir + "/guest"
)

// guestVolume returns the name of the volume with the guest's program, and creates it if needed.
// Its name has the hash of the program, so that running sandboxes keep theirs when Atoll is
// upgraded. A container that never starts fills the volume; its image must be one that the
// engine has.
func (p *Provider) guestVolume(ctx context.Context, image string) (string, error) {
	if p.opts.Guest == nil {
		return "", atoll.Errorf("create", "", atoll.ErrUnavailable, "this provider has no guest program")
	}
	program, err := p.opts.Guest()
	if err != nil {
		return "", atoll.E("create", "", atoll.ErrUnavailable, err)
	}
	engine, err := p.engineInfo(ctx)
	if err == nil {
		err = checkGuestProgram(program, engine.arch)
	}
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(program)
	sum := hex.EncodeToString(hash[:6])
	name := p.names.guestVolumeName(sum)
	lock, err := p.acquireLock(ctx, "create", name)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	ready, err := p.hasGuest(ctx, name)
	if err == nil && !ready {
		err = p.installGuest(ctx, image, name, sum, program)
	}
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	p.guestReady = name
	p.mu.Unlock()
	return name, nil
}

// hasGuest reports whether this provider has filled the volume, and it still exists: docker
// volume prune removes it when no sandbox exists.
func (p *Provider) hasGuest(ctx context.Context, volume string) (bool, error) {
	p.mu.Lock()
	filled := p.guestReady == volume
	p.mu.Unlock()
	if !filled {
		return false, nil
	}
	found, err := p.engine.VolumeInspect(ctx, volume, client.VolumeInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && found.Volume.Labels[labelAtoll] != "", err // a container's start makes one without labels
}

func (p *Provider) installGuest(ctx context.Context, image, volume, sum string, program []byte) error {
	labels := map[string]string{labelAtoll: "true", labelOwner: string(p.names)}
	if _, err := p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: volume, Labels: labels}); err != nil {
		return err
	}
	engine, err := p.engineInfo(ctx)
	if err != nil {
		return err
	}
	host := &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{
		{Type: mount.TypeVolume, Source: volume, Target: guestDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}},
	}}
	if err := engine.adaptMounts(host); err != nil {
		return err
	}
	made, err := p.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:       p.names.installerName(sum, strings.ToLower(rand.Text()[:8])),
		Config:     &container.Config{Image: image, Labels: p.names.installerLabels(), Entrypoint: []string{guestPath}},
		HostConfig: host,
	})
	if err != nil {
		return err
	}
	defer p.dropContainer(made.ID)
	stat, err := p.engine.ContainerStatPath(ctx, made.ID, client.ContainerStatPathOptions{Path: guestPath})
	if err == nil && stat.Stat.Size == int64(len(program)) {
		return nil
	}
	if err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	var packed bytes.Buffer
	tw := tar.NewWriter(&packed)
	err = tw.WriteHeader(&tar.Header{Name: path.Base(guestPath), Mode: 0o555, Size: int64(len(program))})
	if err == nil {
		_, err = tw.Write(program)
	}
	if err == nil {
		err = tw.Close()
	}
	if err == nil {
		_, err = p.engine.CopyToContainer(ctx, made.ID, client.CopyToContainerOptions{DestinationPath: guestDir, Content: &packed})
	}
	return err
}

// dropContainer removes a container, even if the caller has gone. It logs errors.
func (p *Provider) dropContainer(container string) {
	ctx, cancel := p.detachContext(context.Background())
	defer cancel()
	err := p.withExitSlot(ctx, func() error {
		_, err := p.engine.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: true})
		return err
	})
	if err != nil && kindOf(err) != atoll.ErrNotFound {
		p.log.Error("remove", "container", container, "err", err)
	}
}

// detachContext returns a context for work that must be done even if the caller has gone. It does
// not end with ctx, but after cleanupTimeout, or later if the engine's machine is slow.
func (p *Provider) detachContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), p.slowFactor(ctx)*cleanupTimeout)
}

// cleanupTimeout bounds work that must be done even if the caller has gone, on hardware. An
// engine that starts a hundred containers on a busy machine needs so long.
const cleanupTimeout = 2 * time.Minute

// reachGuest returns the running sandbox as its guest serves it, or as its plainRun does if it
// has none. Kinds: ErrNotFound, ErrStopped, ErrUnavailable.
func (p *Provider) reachGuest(ctx context.Context, op, id string) (atoll.Sandbox, error) {
	return p.reachInside(ctx, op, id, func(ctx context.Context) (guestconn.Connection, error) { return p.connectSandbox(ctx, op, id) })
}

// reachInside returns the sandbox that connect connects to. All calls with the same key share a
// connection.
func (p *Provider) reachInside(ctx context.Context, op, who string, connect func(context.Context) (guestconn.Connection, error)) (atoll.Sandbox, error) {
	return p.connections.Connect(ctx, op, who, 0, func(ctx context.Context) (guestconn.Connection, error) {
		ctx, cancel := context.WithTimeout(ctx, p.slowFactor(ctx)*connectTimeout)
		defer cancel()
		return connect(ctx)
	})
}

// connectTimeout bounds one attempt to connect to a guest, on hardware.
const connectTimeout = 30 * time.Second

func (p *Provider) slowFactor(ctx context.Context) time.Duration {
	if p.opts.SlowFactor == nil {
		return 1
	}
	return time.Duration(max(p.opts.SlowFactor(ctx), 1))
}

// connectSandbox connects to the guest of a sandbox: directly if possible, otherwise through the
// engine. If the sandbox has no guest, it joins the current run.
func (p *Provider) connectSandbox(ctx context.Context, op, id string) (guestconn.Connection, error) {
	r, err := p.findRecord(ctx, op, id)
	if err != nil {
		return nil, err
	}
	if err := requireRunning(op, &r.Status); err != nil {
		return nil, err
	}
	if r.plain {
		return p.rejoinRun(ctx, op, r)
	}
	if conn, err := p.dialGuest(ctx, r.pid); err == nil {
		if g, err := guest.Acquaint(ctx, conn, id); err == nil {
			return g, nil
		}
	}
	g, err := p.connectGuest(ctx, r.container, id)
	if err != nil {
		return nil, p.unreachableError(ctx, op, id, err)
	}
	return g, nil
}

// connectGuest connects to the guest of a container through the engine: a second process of the
// guest's program relays the stream.
func (p *Provider) connectGuest(ctx context.Context, container, id string) (*guest.Client, error) {
	made, err := p.engine.ExecCreate(ctx, container, client.ExecCreateOptions{
		Cmd: []string{guestPath, "connect"}, User: "0:0", WorkingDir: "/",
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, err
	}
	stream, err := p.engine.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	conn := &execConn{in: stream.Conn, out: stream.Reader, closeStream: stream.Close}
	g, err := guest.Acquaint(ctx, conn, id)
	if err != nil {
		return nil, errors.Join(err, conn.stderrError())
	}
	return g, nil
}

// unreachableError returns the error for a guest that does not answer: most likely, the sandbox
// has just ended.
func (p *Provider) unreachableError(ctx context.Context, op, id string, err error) error {
	if ctx.Err() != nil {
		return atoll.E(op, id, atoll.ErrUnavailable, ctx.Err())
	}
	if ended := p.checkRunning(ctx, op, id); ended != nil {
		return ended
	}
	return atoll.Errorf(op, id, atoll.ErrUnavailable, "cannot reach its guest: %w (docker.plain creates sandboxes without a guest)", err)
}

// endTimeout bounds how long an engine takes to report the end of a container after its guest is
// gone.
const endTimeout = time.Second

// checkRunning returns the error for a call that needs a running sandbox. It waits up to
// endTimeout for the sandbox's end, and returns nil if the sandbox still runs then.
func (p *Provider) checkRunning(ctx context.Context, op, id string) error {
	deadline := time.Now().Add(endTimeout)
	for delay := 5 * time.Millisecond; ; delay *= 2 {
		r, err := p.findRecord(ctx, op, id)
		if err == nil {
			err = requireRunning(op, &r.Status)
		}
		if err != nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errPaused = errors.New("sandbox is paused: resume it first")

// requireRunning returns an error unless the sandbox runs. Kinds: ErrStopped.
func requireRunning(op string, st *atoll.Status) error {
	switch st.State {
	case atoll.StateRunning:
		return nil
	case atoll.StatePaused:
		return atoll.E(op, st.ID, atoll.ErrStopped, errPaused)
	case atoll.StateFailed:
		return atoll.Errorf(op, st.ID, atoll.ErrStopped, "sandbox has failed: %s", st.Reason)
	}
	return atoll.E(op, st.ID, atoll.ErrStopped, nil)
}

// withPauseCheck calls fn, and cancels its ctx if the sandbox is paused: then the guest does not
// answer. It asks the engine only if fn takes long. If it has canceled fn, its error wraps
// errPaused.
func (p *Provider) withPauseCheck(ctx context.Context, op, id string, fn func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for pause := pauseCheckDelay; ; pause = min(2*pause, time.Second) {
			select {
			case <-done:
				return
			case <-inner.Done():
				return
			case <-time.After(pause):
			}
			if r, err := p.findRecord(inner, op, id); err == nil && r.State == atoll.StatePaused {
				cancel(requireRunning(op, &r.Status))
				return
			}
		}
	}()
	err := fn(inner)
	close(done)
	<-watched
	if cause := context.Cause(inner); err != nil && cause != nil && ctx.Err() == nil {
		return cause
	}
	if err != nil || op != "read" { // a file that is being read needs inner until it is closed, or ctx ends
		cancel(nil)
	}
	return err
}

// pauseCheckDelay is the time after which withPauseCheck first asks the engine.
const pauseCheckDelay = 100 * time.Millisecond

// An execConn is a connection to a program that the engine executes: it reads the program's
// stdout, writes to its stdin, and collects the beginning of its stderr.
type execConn struct {
	in          io.Writer
	out         io.Reader
	closeStream func()

	unread int // bytes of the current frame

	mu     sync.Mutex
	stderr bytes.Buffer
}

// maxStderr is the maximum number of bytes of stderr that an execConn retains.
const maxStderr = 4 << 10

// Read implements io.Reader. Each frame in the engine's stream has a header with the number of
// the output, stdout or stderr, and the frame's length.
func (c *execConn) Read(b []byte) (int, error) {
	for c.unread == 0 {
		var header [8]byte
		if _, err := io.ReadFull(c.out, header[:]); err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint32(header[4:]))
		if header[0] == 1 { // stdout
			c.unread = size
			continue
		}
		said, err := io.ReadAll(io.LimitReader(c.out, int64(size)))
		c.mu.Lock()
		c.stderr.Write(said[:min(len(said), maxStderr-min(maxStderr, c.stderr.Len()))])
		c.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
	n, err := c.out.Read(b[:min(len(b), c.unread)])
	c.unread -= n
	return n, err
}

// Write implements io.Writer.
func (c *execConn) Write(b []byte) (int, error) { return c.in.Write(b) }

// Close implements io.Closer.
func (c *execConn) Close() error {
	c.closeStream()
	return nil
}

// stderrError returns the program's stderr as an error; nil if it is empty.
func (c *execConn) stderrError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := strings.TrimSpace(c.stderr.String()); text != "" {
		return fmt.Errorf("stderr: %q", text)
	}
	return nil
}
