package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// A record is the state of a sandbox; the run of a note is the uid of a pod.
type (
	record = remote.Record[objects]
	note   = remote.Note
)

// objects has the objects of a sandbox in the API server.
type objects struct {
	record *corev1.ConfigMap
	pod    *corev1.Pod // nil if there is none

	damaged bool // the note cannot be decoded
}

// The keys of a record.
const (
	keyNote   = "sandbox" // a note as JSON
	keyStdout = "stdout"  // the stored part of the main process's output, compressed
	keyStderr = "stderr"
)

// A backend implements remote.Backend.
type backend struct{ *Provider }

// Open implements remote.Backend.
func (b backend) Open(ctx context.Context, op string) error { return b.view.open(ctx, op) }

// WrapError implements remote.Backend.
func (b backend) WrapError(ctx context.Context, op, id string, err error) error {
	return b.wrapError(ctx, op, id, err)
}

// Find implements remote.Records.
func (b backend) Find(ctx context.Context, op, id string, as remote.Freshness) (*record, error) {
	if as == remote.Known {
		return b.findRecord(ctx, op, id)
	}
	return b.findLatestRecord(ctx, op, id)
}

// List implements remote.Records.
func (b backend) List(ctx context.Context, op string) ([]*record, error) {
	if err := b.view.open(ctx, op); err != nil {
		return nil, err
	}
	return b.knownRecords(), nil
}

// knownRecords returns the records of all sandboxes that the view has.
func (p *Provider) knownRecords() []*record {
	var list []*record
	for _, object := range p.view.allRecords() {
		list = append(list, p.decodeRecord(object))
	}
	return list
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
	object, err := p.api.core.ConfigMaps(r.Object.record.Namespace).Get(ctx, r.Object.record.Name, getOptions)
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	if r, err = p.awaitFound(ctx, op, id, object); err != nil {
		return nil, err
	}
	seen := func() bool { return isRunOf(p.view.podOf(id), r) }
	if r.Note.State != atoll.StateRunning || seen() {
		return r, nil
	}
	pods, err := p.api.core.Pods(r.Object.record.Namespace).List(ctx, p.names.selectOwn(labelRole, roleSandbox, labelSession, id))
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	if !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return isRunOf(&pod, r) }) {
		return r, nil
	}
	wait, cancel := context.WithTimeout(ctx, endTimeout) // the pod may be deleted meanwhile
	defer cancel()
	_ = p.view.waitUntil(wait, id, seen)
	return p.findRecord(ctx, op, id)
}

// isRunOf reports whether a pod, which may be nil, is the run that the note of a sandbox has.
func isRunOf(pod *corev1.Pod, r *record) bool {
	return pod != nil && string(pod.UID) == r.Note.Run
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
	r := &record{Object: objects{record: object, pod: p.view.podOf(id)}}
	r.ID = id
	if err := json.Unmarshal([]byte(object.Data[keyNote]), &r.Note); err != nil {
		r.Note = note{
			Spec: atoll.Spec{ID: id, Provider: "kubernetes", Project: object.Labels[labelProject]}, Created: object.CreationTimestamp.Time,
			State: atoll.StateFailed, Reason: "its record is damaged: remove it",
		}
		r.Object.damaged = true
	}
	r.FillStatus("kubernetes", p.opts.caps())
	if r.Note.State != atoll.StateRunning {
		return r
	}
	if isRunOf(r.Object.pod, r) {
		ref := cmp.Or(r.Spec.Image, p.opts.Image)
		r.Image = cmp.Or(imageOf(r.Object.pod, ref), r.Image, ref) // the node reports the digest a moment later
	}
	fillRunning(r)
	return r
}

// fillRunning sets the status of a sandbox that was running when its record was written.
func fillRunning(r *record) {
	st, pod := &r.Status, r.Object.pod
	if r.Note.Stopping && (!isRunOf(pod, r) || isLost(pod, time.Now())) {
		st.State = atoll.StateStopped
		return
	}
	if !isRunOf(pod, r) {
		st.State, st.Reason = atoll.StateFailed, "its pod was deleted by somebody else: start it again"
		return
	}
	if end := endOfPod(pod, st.Spec.Resources); end != nil {
		fillEnd(r, end)
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
func fillEnd(r *record, e *podEnd) {
	st := &r.Status
	st.State, st.Stopped, st.Reason = e.exit.State(), e.at, e.report.Reason
	r.Note.Idle = e.report.Idle
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
	if r.Note.Stopping {
		st.State, st.Reason, r.Note.Idle = atoll.StateStopped, "", false
	}
	if st.State == atoll.StateFailed && st.Reason == "" {
		st.Reason = e.exit.Reason
	}
	if st.State == atoll.StateFailed && st.Reason == "" {
		st.Reason = fmt.Sprintf("its main process exited with code %d", exit.Code)
	}
}

// hasEnded reports whether a sandbox has ended that was running when its record was written.
func hasEnded(r *record) bool {
	return r.Note.State == atoll.StateRunning && (r.State == atoll.StateStopped || r.State == atoll.StateFailed)
}

// encodeNote stores a note in its object.
func encodeNote(n *note, object *corev1.ConfigMap) error {
	text, err := json.Marshal(n)
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	object.Data[keyNote] = string(text)
	return err
}

// Insert implements remote.Records.
func (b backend) Insert(ctx context.Context, r *record) error {
	spec := &r.Note.Spec
	if err := b.ensureNamespace(ctx, spec.Project); err != nil {
		return err
	}
	if _, err := b.findRecord(ctx, "create", r.ID); err == nil {
		return remote.ErrDoneElsewhere
	} else if atoll.KindOf(err) != atoll.ErrNotFound {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: b.names.sandboxName(r.ID), Labels: b.names.sandboxLabels(roleSandbox, spec)}}
	if err := encodeNote(&r.Note, object); err != nil {
		return err
	}
	maps := b.api.core.ConfigMaps(b.namespaceOf(spec.Project))
	written, err := maps.Create(ctx, object, createOptions)
	if apierrors.IsAlreadyExists(err) {
		return remote.ErrDoneElsewhere
	}
	if err != nil {
		return b.createError(spec, err)
	}
	r.Object.record = written
	if err := b.view.awaitRecordSeen(ctx, written); err != nil {
		return errors.Join(err, remote.RunCleanup(func(ctx context.Context) error {
			return ignoreGone(maps.Delete(ctx, written.Name, deleteNow(written.UID)))
		}))
	}
	return nil
}

// Update implements remote.Records. It returns when the view has the change.
func (b backend) Update(ctx context.Context, r *record, fn func(n *note) error) error {
	object := r.Object.record.DeepCopy()
	maps := b.api.core.ConfigMaps(object.Namespace)
	for {
		var n note
		if err := json.Unmarshal([]byte(object.Data[keyNote]), &n); err != nil {
			return atoll.Errorf("write", r.ID, atoll.ErrInternal, "its record is damaged: %w", err)
		}
		if err := fn(&n); err != nil {
			return err
		}
		if err := encodeNote(&n, object); err != nil {
			return err
		}
		if err := storeOutput(n.Printed, object); err != nil {
			return err
		}
		written, err := maps.Update(ctx, object, updateOptions)
		if err == nil {
			n.Printed = nil
			r.Object.record, r.Note = written, n
			return b.view.awaitRecordSeen(ctx, written)
		}
		if apierrors.IsConflict(err) {
			object, err = maps.Get(ctx, object.Name, getOptions)
		}
		if apierrors.IsNotFound(err) || err == nil && object.UID != r.Object.record.UID {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
		if err != nil {
			return err
		}
	}
}

// Delete implements remote.Records.
func (b backend) Delete(ctx context.Context, r *record) error {
	object := r.Object.record
	if err := ignoreGone(b.api.core.ConfigMaps(object.Namespace).Delete(ctx, object.Name, deleteNow(object.UID))); err != nil {
		return err
	}
	return b.view.awaitRecordGone(ctx, object)
}

// AwaitChange implements remote.Records.
func (b backend) AwaitChange(ctx context.Context, r *record) error {
	wait, cancel := context.WithDeadline(ctx, r.Note.LeaseExpires)
	defer cancel()
	_ = b.view.waitUntil(wait, r.ID, func() bool {
		object := b.view.recordOf(r.ID)
		return object == nil || object.ResourceVersion != r.Object.record.ResourceVersion
	})
	return ctx.Err()
}

// ClaimName implements remote.Records.
func (b backend) ClaimName(ctx context.Context, r *record) (holder string, err error) {
	spec := &r.Note.Spec
	maps := b.api.core.ConfigMaps(r.Object.record.Namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: b.names.nameRecordName(spec.Project, spec.Name), Labels: b.names.sandboxLabels(roleName, spec), OwnerReferences: ownedBy(r),
	}}
	for range 3 {
		err := remote.RunToEnd(ctx, func(ctx context.Context) error {
			_, err := maps.Create(ctx, object, createOptions)
			return err
		})
		if !apierrors.IsAlreadyExists(err) {
			return "", err
		}
		held, err := maps.Get(ctx, object.Name, getOptions)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		owner := held.Labels[labelSession]
		of, err := b.findRecord(ctx, "create", owner)
		if err == nil && len(held.OwnerReferences) == 1 && held.OwnerReferences[0].UID == of.Object.record.UID && !of.Note.IsAbandoned(time.Now()) {
			return owner, nil
		}
		if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
			return "", err
		}
		if err := ignoreGone(maps.Delete(ctx, held.Name, deleteNow(held.UID))); err != nil { // its sandbox no longer exists
			return "", err
		}
	}
	return "", atoll.Errorf("create", spec.Name, atoll.ErrAlreadyExists, "other programs take the name, too: try again")
}

// ReleaseName implements remote.Records.
func (b backend) ReleaseName(ctx context.Context, r *record) error {
	maps := b.api.core.ConfigMaps(r.Object.record.Namespace)
	held, err := maps.Get(ctx, b.names.nameRecordName(r.Note.Spec.Project, r.Note.Spec.Name), getOptions)
	if apierrors.IsNotFound(err) || err == nil && held.Labels[labelSession] != r.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return ignoreGone(maps.Delete(ctx, held.Name, deleteNow(held.UID)))
}

// Resolve implements remote.Records.
func (b backend) Resolve(ctx context.Context, project, name string) (string, error) {
	object, err := b.api.core.ConfigMaps(b.namespaceOf(project)).Get(ctx, b.names.nameRecordName(project, name), getOptions)
	if err != nil {
		return "", err
	}
	return object.Labels[labelSession], nil
}

// A podEnd describes how a sandbox's pod ended.
type podEnd struct {
	exit   atoll.Exit // of the container; Reason tells of causes other than the main process
	report guest.Report
	at     time.Time
}
