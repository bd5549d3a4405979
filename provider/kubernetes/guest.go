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
)

// reachGuest returns the running sandbox as its guest serves it. Kinds: ErrNotFound,
// ErrStopped, ErrUnavailable.
func (p *Provider) reachGuest(ctx context.Context, op, id string) (atoll.Sandbox, error) {
	inside, err := p.visits.Reach(ctx, op, id, connectTimeout, func(ctx context.Context) (guestconn.Inside, error) {
		r, err := p.findRecord(ctx, op, id)
		if err != nil {
			return nil, err
		}
		if requireRunning(op, &r.Status) != nil { // as far as the view knows
			if r, err = p.findLatestRecord(ctx, op, id); err != nil {
				return nil, err
			}
		}
		if err := requireRunning(op, &r.Status); err != nil {
			return nil, err
		}
		g, err := p.connectGuest(ctx, r.pod, id)
		if err != nil {
			return nil, p.unreachableError(ctx, op, id, err)
		}
		return g, nil
	})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil { // another call has stopped the sandbox, and canceled this attempt
		if ended := p.checkRunning(ctx, op, id); ended != nil {
			return nil, ended
		}
	}
	return inside, err
}

// reachStartedGuest connects to the guest of a pod that was just started. An attempt that
// another call began before that ends with ErrStopped; that is the other call's result, so this
// one tries again.
func (p *Provider) reachStartedGuest(ctx context.Context, op, id string, pod *corev1.Pod) error {
	for {
		_, err := p.visits.Reach(ctx, op, id, connectTimeout, func(ctx context.Context) (guestconn.Inside, error) {
			return p.connectGuest(ctx, pod, id)
		})
		if !errors.Is(err, atoll.ErrStopped) {
			return err
		}
	}
}

// connectTimeout bounds one attempt to connect to a guest.
const connectTimeout = 30 * time.Second

// unreachableError returns the error for a guest that does not answer: most likely, the sandbox
// has just ended.
func (p *Provider) unreachableError(ctx context.Context, op, id string, err error) error {
	if ctx.Err() != nil {
		return atoll.E(op, id, atoll.ErrUnavailable, ctx.Err())
	}
	if ended := p.checkRunning(ctx, op, id); ended != nil {
		return ended
	}
	return atoll.Errorf(op, id, atoll.ErrUnavailable, "cannot reach its guest: %w", err)
}

// endTimeout bounds how long a node takes to report the end of a container after its guest is
// gone: it looks every second.
const endTimeout = 3 * time.Second

// checkRunning returns the error for a call that needs a running sandbox, and nil if the
// sandbox runs. If its guest does not answer, it waits up to endTimeout for the sandbox's end.
func (p *Provider) checkRunning(ctx context.Context, op, id string) (err error) {
	if p.guestAnswers(ctx, id) { // the call failed for another reason
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	_ = p.view.waitUntil(wait, id, func() bool {
		var r *record
		if r, err = p.findRecord(wait, op, id); err == nil {
			err = requireRunning(op, &r.Status)
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

// guestAnswers reports whether the guest that the sandbox is connected to still answers.
func (p *Provider) guestAnswers(ctx context.Context, id string) bool {
	inside := p.visits.Open(id)
	if inside == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := inside.Sandbox().Status(ctx)
	return err == nil
}

// answerTimeout is the longest that a live guest takes to answer.
const answerTimeout = time.Second

// connectGuest connects to the guest of a pod: a second process of the guest's program relays
// the stream.
func (p *Provider) connectGuest(ctx context.Context, pod *corev1.Pod, id string) (guestconn.Inside, error) {
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
