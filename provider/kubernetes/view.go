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

// A view is what the API server has told of what is ours: it is watched, and asked for
// nothing twice.
type view struct {
	p    *Provider
	ns   string // "" is all
	stop chan struct{}

	recordMaps, podCache, claimCache cache.SharedIndexInformer
	podEvents                        cache.SharedIndexInformer // events of pods
	agentSandboxes                   cache.SharedIndexInformer // Sandboxes of agent-sandbox; nil where pods are made without
	warmClaims                       cache.SharedIndexInformer // its SandboxClaims; nil where no pods are kept warm
	running                          sync.WaitGroup

	mu       sync.Mutex
	begun    bool
	closed   bool
	watchErr error                    // of the last try to list or to watch; nil since one has worked
	wakes    map[string]chan struct{} // by sandbox: closed when something of it changes
	started  map[types.UID]bool       // pods of which the sandbox's container has been started
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

// allInformers are its informers.
func (v *view) allInformers() []cache.SharedIndexInformer {
	all := []cache.SharedIndexInformer{v.recordMaps, v.podCache, v.claimCache, v.podEvents}
	for _, informer := range []cache.SharedIndexInformer{v.agentSandboxes, v.warmClaims} {
		if informer != nil {
			all = append(all, informer)
		}
	}
	return all
}

// bySession indexes objects by the sandbox that they are of.
const bySession = "session"

// open begins to watch, for the first who wants to know, and waits until all is known.
// Kinds: ErrUnavailable, ErrDenied.
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

// lastError is why the API server could not be watched, when it was last tried.
func (v *view) lastError() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.watchErr
}

// startInformers starts to watch, unless it has, what m and all others make.
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
	for _, informer := range v.allInformers() {
		v.running.Go(func() { informer.Run(v.stop) })
	}
}

// A source is what the API server tells of one kind of object.
type objectSource[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// newInformer is how one kind of object is watched, of which which selects those that count.
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
	_ = i.SetTransform(stripObject)                                                                                    // fails only when it runs
	_ = i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { v.noteError(err) }) // so does this
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { v.wakeWaiters(obj) },
		UpdateFunc: func(_, obj any) { v.wakeWaiters(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if e, ok := obj.(*corev1.Event); ok { // it was an hour old, and says nothing new
				v.forgetPod(e.InvolvedObject.UID)
				return
			}
			v.wakeWaiters(obj)
		},
	})
	return i
}

// stripObject drops what nobody here reads, which is most of what a pod is.
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

// wakeWaiters tells whoever waits for something of the object's sandbox.
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

// hasClaim reports whether that very volume is there, be it on its way out.
func (v *view) hasClaim(claim *corev1.PersistentVolumeClaim) bool {
	obj, exists, _ := v.claimCache.GetStore().Get(claim) // by its name, which never fails
	return exists && obj.(*corev1.PersistentVolumeClaim).UID == claim.UID
}

// forgetPod forgets that a pod has been started.
func (v *view) forgetPod(pod types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.started, pod)
}

// awaitClaim waits until a volume is seen as this program has left it: there, or not.
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

// nextChange returns what is closed with the next change of something of a sandbox: to be
// asked for before one looks.
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

// waitUntil returns when there is nothing left to wait for, as done says, which is asked
// after each change of something of the sandbox, or with "" of what is no sandbox's.
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

// awaitRecordSeen waits until a record that this program has written is what it reads, too.
func (v *view) awaitRecordSeen(ctx context.Context, object *corev1.ConfigMap) error {
	id, version := object.Labels[labelSession], parseRevision(object.ResourceVersion)
	return v.waitUntil(ctx, id, func() bool {
		have := v.recordOf(id)
		return have == nil && v.isDeleted(object) || have != nil && (have.UID != object.UID || parseRevision(have.ResourceVersion) >= version)
	})
}

// isDeleted reports whether a record is not there any more, although it has been written:
// who waits to see it would wait for ever.
func (v *view) isDeleted(object *corev1.ConfigMap) bool {
	return parseRevision(v.recordMaps.LastSyncResourceVersion()) >= parseRevision(object.ResourceVersion)
}

// awaitRecordGone waits until a record that this program has deleted is not there any more.
func (v *view) awaitRecordGone(ctx context.Context, object *corev1.ConfigMap) error {
	id := object.Labels[labelSession]
	return v.waitUntil(ctx, id, func() bool {
		have := v.recordOf(id)
		return have == nil || have.UID != object.UID
	})
}

// parseRevision is how new an object is: since Kubernetes 1.35 it is said that these are
// numbers, which they have always been.
func parseRevision(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}

// allRecords are those of all sandboxes. Nothing of what the view returns is to be changed.
func (v *view) allRecords() []*corev1.ConfigMap { return allOf[*corev1.ConfigMap](v.recordMaps) }

func (v *view) recordOf(id string) *corev1.ConfigMap {
	for _, object := range objectsOf[*corev1.ConfigMap](v.recordMaps, id) {
		return object
	}
	return nil
}

// podOf is the pod of a sandbox, nil if there is none.
func (v *view) podOf(id string) *corev1.Pod {
	for _, pod := range v.podsWithRole(id, roleSandbox) {
		return pod
	}
	return nil
}

// podsWithRole are those of a sandbox that have that role.
func (v *view) podsWithRole(id, role string) []*corev1.Pod {
	return slices.DeleteFunc(objectsOf[*corev1.Pod](v.podCache, id), func(pod *corev1.Pod) bool { return pod.Labels[labelRole] != role })
}

// probePods are the pods by which is found out what the cluster's network does.
func (v *view) probePods() []*corev1.Pod {
	return slices.DeleteFunc(allOf[*corev1.Pod](v.podCache), func(pod *corev1.Pod) bool { return pod.Labels[labelRole] != roleProbe })
}

// allClaims are all volumes.
func (v *view) allClaims() []*corev1.PersistentVolumeClaim {
	return allOf[*corev1.PersistentVolumeClaim](v.claimCache)
}

// hasStarted reports whether a pod's node has said that the sandbox's container has been
// started, which it does a second before it says so in the pod's status.
func (v *view) hasStarted(pod *corev1.Pod) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.started[pod.UID]
}

// lastWarning is what a pod's node, or the scheduler, has warned of last; "" if of nothing.
// Nodes say in a word what has become of a container, too, besides why: "Error: ErrImagePull".
// That counts if there is nothing else.
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

// isWord reports whether a warning is one only.
func isWord(warning string) bool {
	word, ok := strings.CutPrefix(warning, "Error: ")
	return ok && !strings.Contains(word, " ")
}

func objectsOf[T any](informer cache.SharedIndexInformer, id string) (list []T) {
	found, _ := informer.GetIndexer().ByIndex(bySession, id) // fails without the index only
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

// isOpen reports whether all is known.
func (v *view) isOpen() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.begun && !v.closed && !slices.ContainsFunc(v.allInformers(), func(i cache.SharedIndexInformer) bool { return !i.HasSynced() })
}
