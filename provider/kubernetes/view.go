package kubernetes

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/seed46cd37a8/atoll"
)

// A view caches this server's objects. It watches the API server, so nothing has to be fetched
// twice.
type view struct {
	p    *Provider
	ns   string // "" means all
	stop chan struct{}

	recordMaps, podCache, claimCache cache.SharedIndexInformer
	podEvents                        cache.SharedIndexInformer // events of pods
	agentSandboxes                   cache.SharedIndexInformer // Sandbox objects of agent-sandbox; nil without agent-sandbox
	warmClaims                       cache.SharedIndexInformer // SandboxClaims of agent-sandbox; nil without a warm pool
	running                          sync.WaitGroup

	mu       sync.Mutex
	begun    bool
	closed   bool
	watchErr error                    // of the last list or watch; nil after a success
	wakes    map[string]chan struct{} // by sandbox id: closed when an object of the sandbox changes
	started  map[types.UID]bool       // pods whose node has reported the start of the sandbox's container
}

func newView(p *Provider) *view {
	ns := p.opts.Namespace
	if p.opts.PerProject {
		ns = metav1.NamespaceAll
	}
	v := &view{p: p, ns: ns, stop: make(chan struct{}), wakes: map[string]chan struct{}{}, started: map[types.UID]bool{}}
	core, ours := p.api.core, p.names.selectOwn()
	v.recordMaps = newInformer(v, core.ConfigMaps(ns), &corev1.ConfigMap{}, p.names.selectOwn(labelRole, roleSandbox))
	v.podCache = newInformer(v, core.Pods(ns), &corev1.Pod{}, ours)
	v.claimCache = newInformer(v, core.PersistentVolumeClaims(ns), &corev1.PersistentVolumeClaim{}, ours)
	v.podEvents = newInformer(v, core.Events(ns), &corev1.Event{}, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.kind", "Pod").String()})
	return v
}

// allInformers returns the informers of the view.
func (v *view) allInformers() []cache.SharedIndexInformer {
	all := []cache.SharedIndexInformer{v.recordMaps, v.podCache, v.claimCache, v.podEvents}
	for _, informer := range []cache.SharedIndexInformer{v.agentSandboxes, v.warmClaims} {
		if informer != nil {
			all = append(all, informer)
		}
	}
	return all
}

// bySession is the name of the index of objects by their sandbox's id.
const bySession = "session"

// open starts the informers on the first call, and waits until they are synced. Kinds:
// ErrUnavailable, ErrDenied.
func (v *view) open(ctx context.Context, op string) error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return atoll.Errorf(op, "", atoll.ErrUnavailable, "the provider is closed")
	}
	begun := v.begun
	v.mu.Unlock()
	if !begun {
		if err := v.p.api.pingServer(ctx); err != nil {
			return v.p.wrapError(ctx, op, "", err)
		}
		m, err := v.p.discoverMaker(ctx)
		if err != nil {
			return v.p.wrapError(ctx, op, "", err)
		}
		if a, ok := m.(*agentMaker); ok {
			a.prepareWarmPool(ctx)
		}
		v.startInformers(m)
	}
	for slices.ContainsFunc(v.allInformers(), func(i cache.SharedIndexInformer) bool { return !i.HasSynced() }) {
		if err := v.lastError(); err != nil {
			return v.p.wrapError(ctx, op, "", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-v.stop:
			return atoll.Errorf(op, "", atoll.ErrUnavailable, "the provider is closed")
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

// lastError returns the error of the last list or watch; nil if it succeeded.
func (v *view) lastError() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.watchErr
}

// startInformers starts the informers, unless it has, and those for the objects that m creates.
func (v *view) startInformers(m podMaker) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.begun || v.closed {
		return
	}
	v.p.maker = m
	if a, ok := m.(*agentMaker); ok {
		v.agentSandboxes = newInformer(v, a.sandboxes.Namespace(v.ns), &unstructured.Unstructured{}, v.p.names.selectOwn())
		if a.warm != nil {
			v.warmClaims = newInformer(v, a.warm.claims, &unstructured.Unstructured{}, v.p.names.selectOwn())
		}
	}
	v.begun = true
	var synced []cache.InformerSynced
	for _, informer := range v.allInformers() {
		v.running.Go(func() { informer.Run(v.stop) })
		synced = append(synced, informer.HasSynced)
	}
	v.running.Go(func() {
		if cache.WaitForCacheSync(v.stop, synced...) {
			v.p.engine.Sweeper.Wake() // sweeps before that have done nothing
		}
	})
}

// An objectSource lists and watches one kind of object.
type objectSource[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// newInformer returns an informer for one kind of object, of the objects that match which.
func newInformer[L runtime.Object](v *view, from objectSource[L], kind runtime.Object, which metav1.ListOptions) cache.SharedIndexInformer {
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = which.LabelSelector, which.FieldSelector
		return o
	}
	i := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			all, err := from.List(ctx, with(o))
			v.noteError(err)
			return all, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := from.Watch(ctx, with(o))
			v.noteError(err)
			return w, err
		},
	}, kind, 0, cache.Indexers{bySession: func(obj any) ([]string, error) {
		if o, ok := obj.(metav1.Object); ok && o.GetLabels()[labelSession] != "" {
			return []string{o.GetLabels()[labelSession]}, nil
		}
		return nil, nil
	}})
	_ = i.SetTransform(stripObject)                                                                                    // fails only on a running informer
	_ = i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { v.noteError(err) }) // likewise
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { v.wakeWaiters(obj) },
		UpdateFunc: func(_, obj any) { v.wakeWaiters(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if e, ok := obj.(*corev1.Event); ok { // the event was an hour old, and its deletion says nothing new
				v.forgetPod(e.InvolvedObject.UID)
				return
			}
			v.wakeWaiters(obj)
		},
	})
	return i
}

// stripObject removes the fields that this package does not read, most of a pod.
func stripObject(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Volumes: pod.Spec.Volumes}
	}
	return obj, nil
}

func (v *view) noteError(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watchErr = err
}

// wakeWaiters wakes the calls that wait for a change of the object's sandbox.
func (v *view) wakeWaiters(obj any) {
	id := ""
	switch o := obj.(type) {
	case *corev1.Event:
		if id = v.p.names.sessionOf(o.InvolvedObject.Name); id == "" {
			return
		}
		if o.Reason == "Started" && o.InvolvedObject.FieldPath == "spec.containers{"+mainContainer+"}" {
			v.mu.Lock()
			v.started[o.InvolvedObject.UID] = true
			v.mu.Unlock()
		}
	case *corev1.Pod:
		if id = o.Labels[labelSession]; o.DeletionTimestamp != nil || podEnded(o) {
			v.forgetPod(o.UID)
		}
	case metav1.Object:
		id = o.GetLabels()[labelSession]
	}
	v.mu.Lock()
	if wake := v.wakes[id]; wake != nil {
		delete(v.wakes, id)
		close(wake)
	}
	v.mu.Unlock()
	if id != "" {
		v.p.events.publishChange(id)
	}
}

// hasClaim reports whether this very volume exists, even if it is being deleted.
func (v *view) hasClaim(claim *corev1.PersistentVolumeClaim) bool {
	obj, exists, _ := v.claimCache.GetStore().Get(claim) // by its name, which never fails
	return exists && obj.(*corev1.PersistentVolumeClaim).UID == claim.UID
}

// forgetPod forgets that a pod's container has started.
func (v *view) forgetPod(pod types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.started, pod)
}

// awaitClaim waits until the view has a volume as this program left it: existing or deleted.
func (v *view) awaitClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, there bool) error {
	return v.waitUntil(ctx, claim.Labels[labelSession], func() bool {
		obj, exists, _ := v.claimCache.GetStore().Get(claim) // by its name, which never fails
		if !exists {
			return !there
		}
		have := obj.(*corev1.PersistentVolumeClaim)
		return (have.DeletionTimestamp == nil) == there || have.UID != claim.UID
	})
}

// nextChange returns a channel that is closed with the next change of a sandbox's objects. Call
// it before reading the view, or a change may be missed.
func (v *view) nextChange(id string) <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	wake := v.wakes[id]
	if wake == nil {
		wake = make(chan struct{})
		v.wakes[id] = wake
	}
	return wake
}

// waitUntil returns when done returns true. It calls done at first and after each change of the
// sandbox's objects; the id "" stands for objects without a sandbox.
func (v *view) waitUntil(ctx context.Context, id string, done func() bool) error {
	for {
		change := v.nextChange(id)
		if done() {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		case <-v.stop:
			return atoll.Errorf("watch", id, atoll.ErrUnavailable, "the provider is closed")
		}
	}
}

// awaitRecordSeen waits until the view has a record that a program has written, and publishes
// its state: the informer's handler may run later, when the record has another one.
func (v *view) awaitRecordSeen(ctx context.Context, object *corev1.ConfigMap) error {
	id, version := object.Labels[labelSession], parseRevision(object.ResourceVersion)
	err := v.waitUntil(ctx, id, func() bool {
		have := v.recordOf(id)
		return have == nil && v.isDeleted(object) || have != nil && (have.UID != object.UID || parseRevision(have.ResourceVersion) >= version)
	})
	if err == nil {
		v.p.events.publishChange(id)
	}
	return err
}

// isDeleted reports whether the informer has already passed a record's revision: if the view
// does not have the record, it was deleted, and waiting for it would never end.
func (v *view) isDeleted(object *corev1.ConfigMap) bool {
	return parseRevision(v.recordMaps.LastSyncResourceVersion()) >= parseRevision(object.ResourceVersion)
}

// awaitRecordGone waits until the view no longer has a record that this program has deleted.
func (v *view) awaitRecordGone(ctx context.Context, object *corev1.ConfigMap) error {
	id := object.Labels[labelSession]
	return v.waitUntil(ctx, id, func() bool {
		have := v.recordOf(id)
		return have == nil || have.UID != object.UID
	})
}

// parseRevision returns a resource version as a number. They always were numbers, and
// Kubernetes guarantees it since 1.35.
func parseRevision(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}

// allRecords returns the records of all sandboxes. Callers must not change objects of the view.
func (v *view) allRecords() []*corev1.ConfigMap { return allOf[*corev1.ConfigMap](v.recordMaps) }

func (v *view) recordOf(id string) *corev1.ConfigMap {
	for _, object := range objectsOf[*corev1.ConfigMap](v.recordMaps, id) {
		return object
	}
	return nil
}

// podOf returns the pod of a sandbox; nil if there is none.
func (v *view) podOf(id string) *corev1.Pod {
	for _, pod := range v.podsWithRole(id, roleSandbox) {
		return pod
	}
	return nil
}

// podsWithRole returns the pods of a sandbox with that role.
func (v *view) podsWithRole(id, role string) []*corev1.Pod {
	return slices.DeleteFunc(objectsOf[*corev1.Pod](v.podCache, id), func(pod *corev1.Pod) bool { return pod.Labels[labelRole] != role })
}

// probePods returns the pods that check whether the cluster enforces NetworkPolicies.
func (v *view) probePods() []*corev1.Pod {
	return slices.DeleteFunc(allOf[*corev1.Pod](v.podCache), func(pod *corev1.Pod) bool { return pod.Labels[labelRole] != roleProbe })
}

// allClaims returns all volumes.
func (v *view) allClaims() []*corev1.PersistentVolumeClaim {
	return allOf[*corev1.PersistentVolumeClaim](v.claimCache)
}

// hasStarted reports whether a pod's node has reported the start of the sandbox's container in
// an event, which it does a second before it does so in the pod's status.
func (v *view) hasStarted(pod *corev1.Pod) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.started[pod.UID]
}

// lastWarning returns the last warning of a pod's node or of the scheduler; "" if there is
// none. It prefers sentences to warnings of one word, such as "Error: ErrImagePull", which
// nodes give in addition.
func (v *view) lastWarning(pod *corev1.Pod) string {
	var last *corev1.Event
	for _, e := range allOf[*corev1.Event](v.podEvents) {
		if e.InvolvedObject.UID != pod.UID || e.Type != corev1.EventTypeWarning {
			continue
		}
		if last == nil || isWord(last.Message) && !isWord(e.Message) || isWord(last.Message) == isWord(e.Message) && last.LastTimestamp.Before(&e.LastTimestamp) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return last.Message
}

// isWord reports whether a warning has only one word.
func isWord(warning string) bool {
	word, ok := strings.CutPrefix(warning, "Error: ")
	return ok && !strings.Contains(word, " ")
}

func objectsOf[T any](informer cache.SharedIndexInformer, id string) (list []T) {
	found, _ := informer.GetIndexer().ByIndex(bySession, id) // fails only without the index
	for _, obj := range found {
		if o, ok := obj.(T); ok {
			list = append(list, o)
		}
	}
	return list
}

func allOf[T any](informer cache.SharedIndexInformer) (list []T) {
	for _, obj := range informer.GetStore().List() {
		if o, ok := obj.(T); ok {
			list = append(list, o)
		}
	}
	return list
}

func (v *view) close() {
	v.mu.Lock()
	if !v.closed {
		v.closed = true
		close(v.stop)
	}
	v.mu.Unlock()
	v.running.Wait()
}

// isOpen reports whether the view is open and synced.
func (v *view) isOpen() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.begun && !v.closed && !slices.ContainsFunc(v.allInformers(), func(i cache.SharedIndexInformer) bool { return !i.HasSynced() })
}
