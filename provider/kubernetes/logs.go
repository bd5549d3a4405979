package kubernetes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// logTimeout bounds the reading of a log that has an end.
const logTimeout = 10 * time.Second

// readOutput reads the log of a pod whose sandbox has ended, up to its end. If the log was lost
// with its node, the output is empty, and readOutput logs that.
func (p *Provider) readOutput(ctx context.Context, r *record) *guest.Printed {
	out, err := p.readPodLog(ctx, r)
	if err != nil {
		p.opts.Log.Warn("cannot read the pod's log to its end", "sandbox", r.ID, "err", err)
	}
	return out
}

// readPodLog reads the log like readOutput, but returns an error if it is incomplete.
func (p *Provider) readPodLog(ctx context.Context, r *record) (*guest.Printed, error) {
	out := guest.NothingPrinted()
	if len(r.Spec.Cmd) == 0 || r.Object.pod == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	for {
		change := p.view.nextChange(r.ID)
		log, err := p.api.core.Pods(r.Object.pod.Namespace).GetLogs(r.Object.pod.Name, &corev1.PodLogOptions{Container: mainContainer, Follow: true}).Stream(ctx)
		if err == nil {
			defer log.Close()
			return guest.ReadPrinted(log)
		}
		if !apierrors.IsBadRequest(err) {
			return out, err
		}
		select { // the node has not noticed yet that the container was started
		case <-change:
		case <-ctx.Done():
			return out, err
		}
	}
}

// storedOutputSize bounds the compressed size of each output in a record: an object of
// Kubernetes has at most 1 MiB.
const storedOutputSize = 380 << 10

// storeOutput stores the ends of the outputs in a record, as much as fits. It leaves the stored
// ones if out is nil.
func storeOutput(out *guest.Printed, object *corev1.ConfigMap) error {
	if out == nil {
		return nil
	}
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

// storedOutput returns the outputs that a record has.
func storedOutput(r *record) *guest.Printed {
	return &guest.Printed{
		Stdout: guest.UnpackTail(r.Note.Stdout, r.Object.record.BinaryData[keyStdout]),
		Stderr: guest.UnpackTail(r.Note.Stderr, r.Object.record.BinaryData[keyStderr]),
	}
}

// Output implements remote.Runs. If no program has recorded the end yet, it reads the pod's log.
func (b backend) Output(ctx context.Context, r *record) (*guest.Printed, error) {
	if r.Note.State != atoll.StateRunning {
		return storedOutput(r), nil
	}
	out, err := b.readPodLog(ctx, r)
	if err == nil {
		return out, nil
	}
	if again, lookErr := b.findRecord(ctx, "process", r.ID); lookErr == nil && again.Note.State != atoll.StateRunning && again.Exit != nil { // another program has recorded it meanwhile
		*r = *again
		return storedOutput(again), nil
	}
	b.opts.Log.Warn("cannot read the pod's log", "sandbox", r.ID, "err", err)
	return out, nil
}
