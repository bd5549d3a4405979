package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// A note is the stored state of a sandbox, in its record.
type note struct {
	Spec atoll.Spec `json:"spec"`
	// State is StateCreating, StateCreated, the state in which the sandbox ended, or
	// StateRunning: then the pod tells its actual state.
	State        atoll.State `json:"state"`
	Pod          types.UID   `json:"pod,omitempty"`     // of the last run
	Starter      string      `json:"starter,omitempty"` // a random id of the program's start that holds the lease
	LeaseExpires time.Time   `json:"until,omitzero"`    // expiry of the lease of a creation or a start
	Removing     bool        `json:"over,omitempty"`    // it has expired and is being removed: no program may extend it
	Expires      time.Time   `json:"expires,omitzero"`  // its expiry
	Image        string      `json:"image,omitempty"`   // of the last run, with its digest
	Started      time.Time   `json:"started,omitzero"`  // when the last run began
	Stopped      time.Time   `json:"stopped,omitzero"`  // when it ended, if it has
	Exit         *atoll.Exit `json:"exit,omitempty"`    // of the main process
	Reason       string      `json:"reason,omitempty"`  // why it ended
	Idle         bool        `json:"idle,omitempty"`    // it was stopped because it was idle
	Volume       bool        `json:"volume,omitempty"`  // it has a data volume
	Stdout       int64       `json:"stdout,omitempty"`  // bytes that the main process had written when it ended
	Stderr       int64       `json:"stderr,omitempty"`  // the record has the last of them
}

// The keys of a record.
const (
	keyNote   = "sandbox" // a note as JSON
	keyStdout = "stdout"  // the stored part of the main process's output, compressed
	keyStderr = "stderr"
)

// A record is the state of a sandbox, as far as it is known.
type record struct {
	atoll.Status
	note   note
	object *corev1.ConfigMap
	pod    *corev1.Pod // nil if there is none
}

// findRecord finds a sandbox. If the view does not have it, it asks the API server: another
// program may have created it a moment ago. Kinds: ErrNotFound, ErrUnavailable.
func (p *Provider) findRecord(ctx context.Context, op, id string) (*record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.view.open(ctx, op); err != nil {
		return nil, err
	}
	if object := p.view.recordOf(id); object != nil {
		return p.decodeRecord(object), nil
	}
	if p.opts.PerProject { // its namespace is unknown
		return p.searchNamespaces(ctx, op, id)
	}
	object, err := p.api.core.ConfigMaps(p.opts.Namespace).Get(ctx, p.names.sandboxName(id), getOptions)
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	return p.awaitFound(ctx, op, id, object)
}

// findLatestRecord is like findRecord, but asks the API server, so it includes changes that
// another program has just made and that the view does not have yet. Kinds: those of
// findRecord.
func (p *Provider) findLatestRecord(ctx context.Context, op, id string) (*record, error) {
	r, err := p.findRecord(ctx, op, id)
	if err != nil {
		return nil, err
	}
	object, err := p.api.core.ConfigMaps(r.object.Namespace).Get(ctx, r.object.Name, getOptions)
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	if r, err = p.awaitFound(ctx, op, id, object); err != nil {
		return nil, err
	}
	seen := func() bool {
		pod := p.view.podOf(id)
		return pod != nil && pod.UID == r.note.Pod
	}
	if r.note.State != atoll.StateRunning || seen() {
		return r, nil
	}
	pods, err := p.api.core.Pods(r.object.Namespace).List(ctx, p.names.selectOwn(labelRole, roleSandbox, labelSession, id))
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	there := func(pod corev1.Pod) bool { return pod.UID == r.note.Pod }
	if !slices.ContainsFunc(pods.Items, there) {
		return r, nil
	}
	wait, cancel := context.WithTimeout(ctx, endTimeout) // the pod may be deleted meanwhile
	defer cancel()
	_ = p.view.waitUntil(wait, id, seen)
	return p.findRecord(ctx, op, id)
}

// searchNamespaces finds a sandbox in any namespace.
func (p *Provider) searchNamespaces(ctx context.Context, op, id string) (*record, error) {
	all, err := p.api.core.ConfigMaps(metav1.NamespaceAll).List(ctx, p.names.selectOwn(labelRole, roleSandbox, labelSession, id))
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	for i := range all.Items {
		return p.awaitFound(ctx, op, id, &all.Items[i])
	}
	return nil, atoll.E(op, id, atoll.ErrNotFound, nil)
}

// awaitFound waits until the view has an object that was found, with its pod.
func (p *Provider) awaitFound(ctx context.Context, op, id string, object *corev1.ConfigMap) (*record, error) {
	if object.Labels[labelOwner] != string(p.names) || object.Labels[labelSession] != id || object.Labels[labelRole] != roleSandbox {
		return nil, atoll.E(op, id, atoll.ErrNotFound, nil) // not one of ours
	}
	if err := p.view.awaitRecordSeen(ctx, object); err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	if object := p.view.recordOf(id); object != nil {
		return p.decodeRecord(object), nil
	}
	return nil, atoll.E(op, id, atoll.ErrNotFound, nil)
}

// decodeRecord returns the record in an object, completed by the pod that the view has.
func (p *Provider) decodeRecord(object *corev1.ConfigMap) *record {
	id := object.Labels[labelSession]
	r := &record{object: object, pod: p.view.podOf(id)}
	st := &r.Status
	st.ID, st.Provider, st.Caps, st.Created = id, "kubernetes", p.opts.caps(), object.CreationTimestamp.Time
	if err := json.Unmarshal([]byte(object.Data[keyNote]), &r.note); err != nil {
		st.Spec = atoll.Spec{ID: id, Provider: "kubernetes", Project: object.Labels[labelProject]}
		st.State, st.Reason = atoll.StateFailed, "its record is damaged: remove it"
		return r
	}
	n := &r.note
	st.Spec, st.State, st.Image, st.Expires = n.Spec, n.State, n.Image, n.Expires
	st.Started, st.Stopped, st.Exit, st.Reason = n.Started, n.Stopped, n.Exit, n.Reason
	if at, err := time.Parse(time.RFC3339Nano, object.Annotations[annotationCreated]); err == nil {
		st.Created = at // a time stamp of Kubernetes has whole seconds
	}
	if n.State != atoll.StateRunning {
		return r
	}
	if r.pod != nil && r.pod.UID == n.Pod {
		ref := cmp.Or(n.Spec.Image, p.opts.Image)
		st.Image = cmp.Or(imageOf(r.pod, ref), st.Image, ref) // the node reports the digest a moment later
	}
	r.fillRunning()
	return r
}

// annotationCreated has the time of a sandbox's creation.
const annotationCreated = "atoll/created"

// fillRunning sets the status of a sandbox that was running when its record was written.
func (r *record) fillRunning() {
	st, pod := &r.Status, r.pod
	if pod == nil || pod.UID != r.note.Pod {
		st.State, st.Reason = atoll.StateFailed, "its pod was deleted by somebody else: start it again"
		return
	}
	if end := endOfPod(pod, st.Spec.Resources); end != nil {
		r.fillEnd(end)
		return
	}
	if isLost(pod, time.Now()) {
		st.State, st.Reason = atoll.StateFailed, unreachableReason(pod)+", and its pod was deleted: start it again"
		return
	}
	st.Ready = true
	if why := unreachableReason(pod); why != "" {
		st.Ready, st.Reason = false, why
	}
}

// fillEnd sets the status of a sandbox that has ended.
func (r *record) fillEnd(e *sandboxEnd) {
	st := &r.Status
	st.State, st.Stopped, st.Reason = e.exit.State(), e.at, e.report.Reason
	r.note.Idle = e.report.Idle
	exit := e.exit
	if e.report.Main != nil {
		exit = *e.report.Main
	}
	exit.Duration = 0
	if e.report.Idle {
		st.State = atoll.StateStopped
	}
	if len(st.Spec.Cmd) > 0 {
		st.Exit = &exit
		if !e.report.Idle && e.exit.Reason == "" {
			st.State = exit.State()
		}
	}
	if st.State == atoll.StateFailed && st.Reason == "" {
		st.Reason = e.exit.Reason
	}
	if st.State == atoll.StateFailed && st.Reason == "" {
		st.Reason = fmt.Sprintf("its main process exited with code %d", exit.Code)
	}
}

// isStarting reports whether a program holds the lease of a start.
func (n *note) isStarting(now time.Time) bool { return n.Starter != "" && now.Before(n.LeaseExpires) }

// hasEnded reports whether a sandbox has ended that was running when its record was written.
func (r *record) hasEnded() bool {
	return r.note.State == atoll.StateRunning && (r.State == atoll.StateStopped || r.State == atoll.StateFailed)
}

// encodeInto stores a note in its object.
func (n *note) encodeInto(object *corev1.ConfigMap) error {
	text, err := json.Marshal(n)
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	object.Data[keyNote] = string(text)
	return err
}

// updateRecord calls fn to change the note of a sandbox, stores the result, and waits until the
// view has it. If fn returns an error, nothing changes. updateRecord calls fn again if another
// program has written meanwhile. Kinds: ErrNotFound (the sandbox does not exist, or another one
// has its id), and those of fn.
func (p *Provider) updateRecord(ctx context.Context, r *record, fn func(object *corev1.ConfigMap, n *note) error) error {
	object := r.object.DeepCopy()
	maps := p.api.core.ConfigMaps(object.Namespace)
	for {
		var n note
		if err := json.Unmarshal([]byte(object.Data[keyNote]), &n); err != nil {
			return atoll.Errorf("write", r.ID, atoll.ErrInternal, "its record is damaged: %w", err)
		}
		if err := fn(object, &n); err != nil {
			return err
		}
		if err := n.encodeInto(object); err != nil {
			return err
		}
		written, err := maps.Update(ctx, object, updateOptions)
		if err == nil {
			r.object, r.note = written, n
			return p.view.awaitRecordSeen(ctx, written)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		if object, err = maps.Get(ctx, object.Name, getOptions); err != nil {
			return err
		}
		if object.UID != r.object.UID {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
	}
}

// requireRunning returns the error of a call that needs a running sandbox; nil if it runs.
func requireRunning(op string, st *atoll.Status) error {
	switch st.State {
	case atoll.StateRunning:
		return nil
	case atoll.StateFailed:
		return atoll.Errorf(op, st.ID, atoll.ErrStopped, "sandbox has failed: %s", st.Reason)
	}
	return atoll.E(op, st.ID, atoll.ErrStopped, nil)
}

// A sandboxEnd describes how a sandbox's pod ended.
type sandboxEnd struct {
	exit   atoll.Exit // of the container; Reason tells of causes other than the main process
	report guest.Report
	at     time.Time
}
