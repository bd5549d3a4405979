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

// Where the guest's program is in every container, read-only.
const (
	guestDir  = "/.atoll"
	guestPath = guestDir + "/guest"
)

// guestVolume returns the volume that holds the guest's program, by its sum, so
// that sandboxes live on with theirs when Atoll is upgraded. It is filled by a
// container that is never started; image is one that is there.
func (p *Provider) guestVolume(ctx context.Context, image string) (string, error) {
	if p.opts.Guest == nil {
		return "", atoll.Errorf("create", "", atoll.ErrUnavailable, "no guest was given to this provider")
	}
	program, err := p.opts.Guest()
	if err != nil {
		return "", atoll.E("create", "", atoll.ErrUnavailable, err)
	}
	f, err := p.engineInfo(ctx)
	if err == nil {
		err = checkGuestProgram(program, f.arch)
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
	p.mu.Lock()
	ready := p.guestReady
	p.mu.Unlock()
	if ready {
		return name, nil
	}
	if err := p.installGuest(ctx, image, name, sum, program); err != nil {
		return "", err
	}
	p.mu.Lock()
	p.guestReady = true
	p.mu.Unlock()
	return name, nil
}

func (p *Provider) installGuest(ctx context.Context, image, volume, sum string, program []byte) error {
	labels := map[string]string{labelAtoll: "true", labelOwner: string(p.names)}
	if _, err := p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: volume, Labels: labels}); err != nil {
		return err
	}
	f, err := p.engineInfo(ctx)
	if err != nil {
		return err
	}
	host := &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{
		{Type: mount.TypeVolume, Source: volume, Target: guestDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}},
	}}
	if err := f.adaptMounts(host); err != nil {
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

// dropContainer removes a container that is of no use, whatever has become of the caller.
func (p *Provider) dropContainer(container string) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	err := p.withExitSlot(ctx, func() error {
		_, err := p.engine.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: true})
		return err
	})
	if err != nil && kindOf(err) != atoll.ErrNotFound {
		p.log.Error("remove", "container", container, "err", err)
	}
}

// cleanupTimeout is how long what has to be done in any case may take: an engine that
// starts a hundred containers at once on a busy machine takes its time.
const cleanupTimeout = 2 * time.Minute

// reachGuest returns the sandbox as it is from inside. Kinds: ErrNotFound, ErrStopped,
// ErrUnavailable.
func (p *Provider) reachGuest(ctx context.Context, op, id string) (atoll.Sandbox, error) {
	return p.reachInside(ctx, op, id, func(ctx context.Context) (guestconn.Inside, error) { return p.connectSandbox(ctx, op, id) })
}

// reachInside returns the sandbox to whose inside connect connects. One
// connection serves all who ask for the same.
func (p *Provider) reachInside(ctx context.Context, op, who string, connect func(context.Context) (guestconn.Inside, error)) (atoll.Sandbox, error) {
	return p.visits.Reach(ctx, op, who, 0, func(ctx context.Context) (guestconn.Inside, error) {
		ctx, cancel := context.WithTimeout(ctx, p.slowFactor(ctx)*connectTimeout)
		defer cancel()
		return connect(ctx)
	})
}

// connectTimeout is how long it may take to connect to a guest, on hardware.
const connectTimeout = 30 * time.Second

func (p *Provider) slowFactor(ctx context.Context) time.Duration {
	if p.opts.Slow == nil {
		return 1
	}
	return time.Duration(max(p.opts.Slow(ctx), 1))
}

// connectSandbox connects to the inside of a sandbox: to its guest directly where that can be
// done, else by way of the engine.
func (p *Provider) connectSandbox(ctx context.Context, op, id string) (guestconn.Inside, error) {
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

// connectGuest connects to the guest of a container by way of the engine, which
// executes its program once more.
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

// unreachableError says what it means that the guest cannot be reached: most likely the
// sandbox has just ended.
func (p *Provider) unreachableError(ctx context.Context, op, id string, err error) error {
	if ctx.Err() != nil {
		return atoll.E(op, id, atoll.ErrUnavailable, ctx.Err())
	}
	if ended := p.checkRunning(ctx, op, id); ended != nil {
		return ended
	}
	return atoll.Errorf(op, id, atoll.ErrUnavailable, "its guest cannot be reached: %w; docker.plain makes sandboxes without one", err)
}

// endTimeout is how long the engine may take to say that a container has ended,
// whose guest has just gone.
const endTimeout = time.Second

// checkRunning waits a moment for the sandbox to end, and is the error of what needs it
// to run; nil if it does.
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

// requireRunning is the error of what needs a running sandbox.
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

// unlessPaused calls fn, and breaks off when it turns out that the sandbox is paused:
// then its guest does not answer. The engine is asked only if that takes long.
func (p *Provider) unlessPaused(ctx context.Context, op, id string, fn func(context.Context) error) error {
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
	if why := context.Cause(inner); err != nil && why != nil && ctx.Err() == nil {
		return why
	}
	if err != nil || op != "read" { // a file that is being read goes on, until it is closed or ctx ends
		cancel(nil)
	}
	return err
}

// pauseCheckDelay is how long an answer may take before it is asked why.
const pauseCheckDelay = 100 * time.Millisecond

// An execConn is the stdio of a program that the engine executes: what it writes
// to stdout is read, and what it says on stderr is kept.
type execConn struct {
	in          io.Writer
	out         io.Reader
	closeStream func()

	unread int // of the frame that is being read

	mu     sync.Mutex
	stderr bytes.Buffer
}

// maxStderr is how much of stderr is kept.
const maxStderr = 4 << 10

// Read implements io.Reader. In the engine's stream each piece of output has a
// header before it: which stream it is of, and its length.
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

// stderrError is what the program said on stderr.
func (c *execConn) stderrError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := strings.TrimSpace(c.stderr.String()); text != "" {
		return fmt.Errorf("it says %q", text)
	}
	return nil
}
