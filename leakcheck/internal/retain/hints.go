package retain

import (
	"reflect"
	"slices"
	"strings"
)

var errorType = reflect.TypeFor[error]()

// hint returns the advice that goes with the usual culprits, the most telling first.
func (x *explainer) hint(steps []Step, views []view, labels []string) string {
	root := steps[0]
	edges := strings.Builder{}
	for _, s := range steps {
		edges.WriteString(s.Edge + "\n")
	}
	some := func(f func(s Step) bool) bool {
		return slices.ContainsFunc(steps[:len(steps)-1], f)
	}
	named := func(prefix string) bool { return some(func(s Step) bool { return strings.HasPrefix(s.Name, prefix) }) }
	hint, standard := standardHint(root)
	edge := func(part string) bool { return strings.Contains(edges.String(), part) }
	switch {
	case hint != "":
		return hint
	case root.Kind == "goroutine" && strings.Contains(root.Name, "[coroutine]"):
		return "iter.Pull keeps its iterator until that has ended or stop is called: call stop, best in a defer, and in Close"
	case root.Kind == "goroutine" && root.Edge == "deferred call":
		return "a deferred call keeps what it will use until its function returns: end the goroutine in Close, and wait for it"
	case named("method value") && some(func(s Step) bool { return strings.Contains(s.Edge, " key") }):
		return "a cache keyed by a method value keeps its receiver: key it by the method expression, or delete the entry in Close"
	case named("*context.timerCtx"):
		return "a context with a deadline keeps its values and what waits for it until it fires or is cancelled: call its cancel function in Close"
	case named("*context.afterFuncCtx"):
		return "context.AfterFunc keeps its function until the context ends: call the stop function that it returned in Close"
	case named("*context.cancelCtx") && edge(".children key"):
		return "a derived context hangs on its parent until it is cancelled: call its cancel function in Close"
	case named("*http.persistConn"):
		return "an idle HTTP connection keeps its Transport and all that this refers to: close every response's body, and call CloseIdleConnections in Close"
	case root.Kind == "timer":
		return "a pending timer keeps its function and what that captured: Stop it in Close"
	case root.Kind == "test cleanup":
		return "a function given to t.Cleanup keeps what it captured until the test has ended: check after it, in a Cleanup registered earlier (Guard first), or in a parent of t.Run"
	case named("*time.Timer") || named("*time.Ticker"):
		return "a time.Timer keeps its function even when it was stopped or has fired: drop the timer too"
	case root.Kind == "cleanup":
		return "a cleanup keeps its function and argument until the object that it is attached to is gone, for ever when one of them reaches the object: pass it only what it has to free"
	case named("*runtime.pinner") || strings.Contains(root.Name, "runtime.(*Pinner)"):
		return "a runtime.Pinner keeps what it pinned: call Unpin in Close"
	case root.Kind == "finalizer" && strings.Contains(root.Edge, "captured"):
		return "a finalizer's closure keeps what it captured until the object is gone, for ever when that leads to the object: use the finalizer's argument instead"
	case root.Kind == "finalizer":
		return "an object with a finalizer keeps all it refers to, and is never freed when that leads back to it: use runtime.AddCleanup, or break the cycle in Close"
	case named("*context.valueCtx"):
		return "a context keeps its values, and its parents' values, for as long as anything derived from it lives: pass an id, not the object"
	case strings.Contains(edges.String(), "beyond its length"):
		return "an element behind the slice's end is still in its array: clear it before cutting the slice (slices.Delete does)"
	case some(func(s Step) bool {
		return strings.Contains(s.Note, "a string of ") && strings.Contains(s.Note, "keeps its whole array")
	}):
		return "a part of a string keeps the whole string: copy the part (strings.Clone)"
	case some(func(s Step) bool { return strings.Contains(s.Note, "keeps its whole array") }):
		return "a part of a slice keeps the whole array: copy the part (slices.Clone)"
	case some(func(s Step) bool { return strings.Contains(s.Note, keepsWhole) }):
		return "a pointer to a part keeps the whole allocation: allocate the parts one by one, copy the value, or drop the pointer in Close"
	case x.throughError(views):
		return "an error keeps what it was made with, for as long as the error itself is kept: put an id or a string into it, not the object"
	case strings.Contains(edges.String(), ".victim") || strings.HasPrefix(root.Type, "sync.Pool"):
		return "a sync.Pool lets go after two collections; what is still in it was just put there"
	case named("method value"):
		return "a stored method value keeps its receiver: remove it in Close"
	case root.Kind == "goroutine" && strings.Contains(root.Name, "the one that checks"):
		return "the goroutine that checks holds it itself, in a variable that is still used or in a deferred call: let go of it first"
	case root.Kind == "goroutine" && strings.Contains(root.Name, "[chan send"):
		return "a goroutine that waits to send keeps what it sends and all that it captured: receive, or let it select on its context too, and wait for it to end"
	case root.Kind == "goroutine" && strings.Contains(root.Edge, "not in the stack map"):
		return "a deferred call keeps what it will use until its function returns, and a dead slot what it last held: end the goroutine in Close, and wait for it"
	case root.Kind == "goroutine" && strings.Contains(root.Name, "[IO wait"):
		return "a goroutine that waits for input or output keeps what it uses: close the connection, listener or file in Close, and wait for it to end"
	case root.Kind == "goroutine" && (strings.Contains(root.Name, "[chan ") || strings.Contains(root.Name, "[select")):
		return "a goroutine that waits on a channel keeps all that it captured: close the channel or cancel its context in Close, and wait for it to end"
	case root.Kind == "goroutine":
		return "a goroutine keeps what it uses until it ends: stop it in Close, and wait for it"
	case root.Note == notFreed:
		return "what a package-level variable is initialised with lies in static memory and is never freed: clear its fields in Close, it is not enough to replace it"
	case standard:
		return "a variable of the standard library keeps it for the whole process: look for the call that takes it back, or give the library a value of the test's own"
	case root.Kind == "global":
		return "a package-level variable keeps it: remove the entry in Close, or hold it by a weak.Pointer"
	}
	return ""
}

// globals are variables of other people's packages that users cannot clear, with what they can do
// instead.
var globals = []struct{ name, hint string }{
	{"net/http.DefaultServeMux", "handlers cannot be taken out of http.DefaultServeMux: register them on a ServeMux of the test's own (http.NewServeMux)"},
	{"net/http.defaultServeMux", "handlers cannot be taken out of http.DefaultServeMux: register them on a ServeMux of the test's own (http.NewServeMux)"},
	{"net/http.DefaultTransport", "http.DefaultTransport belongs to the whole process: use a Transport of the engine's own, and call CloseIdleConnections in Close"},
	{"expvar.", "expvar cannot unpublish: publish once in the process, a function that asks for the engine of the moment"},
	{"runtime/cgo.handles", "a cgo.Handle keeps its value until it is deleted: call Delete in Close"},
	{"os/signal.", "signal.Notify keeps its channel, and signal.NotifyContext its context: call signal.Stop, or the stop function, in Close"},
	{"log/slog.defaultLogger", "slog.SetDefault keeps the handler: set the former default again in Close"},
	{"log.std", "log.SetOutput keeps the writer: set the former one again in Close"},
	{
		"flag.CommandLine",
		"flag.CommandLine keeps its variables for the whole process: use a flag.FlagSet of the engine's own",
	},
	{
		"database/sql.drivers",
		"a registered sql driver stays for the whole process: register it once, without the engine",
	},
	{"github.com/prometheus/client_golang/prometheus.", "a registered collector stays with its registry: call Unregister in Close, or use a registry of the test's own"},
}

// standardHint is the advice for a global variable that is not the user's, when there is a special
// one.
func standardHint(root Step) (hint string, isStandard bool) {
	if root.Kind != "global" {
		return "", false
	}
	for _, g := range globals {
		if root.key == g.name || strings.HasSuffix(g.name, ".") && strings.HasPrefix(root.key, g.name) {
			return g.hint, true
		}
	}
	return "", standard(root.key)
}

// throughError reports whether a step before the last is an error.
func (x *explainer) throughError(views []view) bool {
	for _, v := range views[:len(views)-1] {
		if v.kind == value && !v.slice && (v.t.Implements(errorType) || reflect.PointerTo(v.t).Implements(errorType)) {
			return true
		}
	}
	return false
}
