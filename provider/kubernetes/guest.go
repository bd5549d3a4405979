package kubernetes

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// Connect implements remote.Runs.
func (b backend) Connect(ctx context.Context, op string, r *record) (guestconn.Connection, error) {
	g, err := b.connectGuest(ctx, r.Object.pod, r.ID)
	if err != nil && ctx.Err() == nil {
		return nil, atoll.Errorf(op, r.ID, atoll.ErrUnavailable, "cannot reach its guest: %w", err)
	}
	return g, err
}

// reachStartedGuest connects to the guest of a pod that was just started. An attempt that
// another call began before that ends with ErrStopped; that is the other call's result, so this
// one tries again.
func (p *Provider) reachStartedGuest(ctx context.Context, op, id string, pod *corev1.Pod) error {
	for {
		_, err := p.engine.Guests.Connect(ctx, op, id, remote.ConnectTimeout, func(ctx context.Context) (guestconn.Connection, error) {
			return p.connectGuest(ctx, pod, id)
		})
		if !errors.Is(err, atoll.ErrStopped) {
			return err
		}
	}
}

// endTimeout bounds how long a node takes to report the end of a container after its guest is
// gone: it looks every second.
const endTimeout = 3 * time.Second

// AwaitEnd implements remote.Runs.
func (b backend) AwaitEnd(ctx context.Context, op, id string) (err error) {
	wait, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	_ = b.view.waitUntil(wait, id, func() bool {
		var r *record
		if r, err = b.findRecord(wait, op, id); err == nil {
			err = remote.RequireRunning(op, &r.Status)
		}
		return err != nil
	})
	if wait.Err() != nil && ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || err == nil) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// answerTimeout is the longest that a live guest takes to answer.
const answerTimeout = time.Second

// connectGuest connects to the guest of a pod: a second process of the guest's program relays
// the stream.
func (p *Provider) connectGuest(ctx context.Context, pod *corev1.Pod, id string) (guestconn.Connection, error) {
	conn, err := p.execGuest(ctx, pod, "connect")
	if err != nil {
		return nil, err
	}
	g, err := guest.Acquaint(ctx, conn, id)
	if err != nil {
		_ = conn.Close()
		return nil, errors.Join(err, conn.stderrError())
	}
	return g, nil
}

// execGuest executes the guest's program once more in a pod.
func (p *Provider) execGuest(ctx context.Context, pod *corev1.Pod, what string) (*conn, error) {
	req := p.api.core.RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: mainContainer, Command: []string{guestPath, what}, Stdin: true, Stdout: true, Stderr: true,
	}, scheme.ParameterCodec)
	return dialExec(ctx, p.api.streams, req.URL())
}
