package kubernetes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/seed46cd37a8/atoll/machine/guest"
)

// logTimeout is how long a log may take that comes to its end.
const logTimeout = 10 * time.Second

// readOutput reads the log of a pod whose sandbox has ended, up to its end. Where it is lost
// with its node, there is nothing left to be had.
func (p *Provider) readOutput(ctx context.Context, r *record) *guest.Printed {
	out, err := p.readPodLog(ctx, r)
	if err != nil {
		p.opts.Log.Warn("the log of its pod cannot be read to its end", "sandbox", r.ID, "err", err)
	}
	return out
}

// readPodLog is printed, or says why it is not all.
func (p *Provider) readPodLog(ctx context.Context, r *record) (*guest.Printed, error) {
	out := guest.NothingPrinted()
	if len(r.Spec.Cmd) == 0 || r.pod == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	for {
		change := p.view.nextChange(r.ID)
		log, err := p.api.core.Pods(r.pod.Namespace).GetLogs(r.pod.Name, &corev1.PodLogOptions{Container: mainContainer, Follow: true}).Stream(ctx)
		if err == nil {
			defer log.Close()
			return guest.ReadPrinted(log)
		}
		if !apierrors.IsBadRequest(err) {
			return out, err
		}
		select { // its node has not noticed yet that the container was started
		case <-change:
		case <-ctx.Done():
			return out, err
		}
	}
}

// storedOutputSize is how much of a record outputs may take, compressed: an object of Kubernetes
// has 1 MiB for all.
const storedOutputSize = 380 << 10 // each

// storeOutput writes what is kept of the outputs into a record: as much of their ends as there
// is room for.
func storeOutput(out *guest.Printed, object *corev1.ConfigMap) error {
	object.BinaryData = map[string][]byte{}
	for key, tail := range map[string]*guest.Tail{keyStdout: out.Stdout, keyStderr: out.Stderr} {
		packed, err := tail.Pack(storedOutputSize)
		if err != nil {
			return err
		}
		if packed != nil {
			object.BinaryData[key] = packed
		}
	}
	return nil
}

// storedOutput is what a record has of its outputs.
func storedOutput(r *record) *guest.Printed {
	return &guest.Printed{
		Stdout: guest.UnpackTail(r.note.Stdout, r.object.BinaryData[keyStdout]),
		Stderr: guest.UnpackTail(r.note.Stderr, r.object.BinaryData[keyStderr]),
	}
}
