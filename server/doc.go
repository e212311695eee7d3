// Package server starts inference servers for tests, speaks their protocols, and proves them gone.
//
//	func TestGreedy(t *testing.T) {
//		r := runner.Start(t, server.LlamaCpp("model.gguf"))
//		got := r.GenerateGreedy("The lighthouse", 16)
//	}
//
// [Command] starts any program, [LlamaCpp], [Ollama], [VLLM], [SGLang] and [Enginetest] those that
// this package knows, and [Attach] uses one that runs elsewhere. Each returns a function that a
// fixture takes; [Opener.Start] and [Server.Stop] do without one, in a TestMain, a suite or a
// program.
//
// A start takes a free port, waits until the server is ready, and ends at once when the server
// dies:
//
//	server: llama-server (pid 4121) exited with code 1 31ms after its start, before it was ready
//	    command: llama-server --model m.gguf --host 127.0.0.1 --port 40123
//	    the last lines of its log, with the time since its start:
//	         29ms  E srv    load_model: failed to load model, 'm.gguf'
//
// A server that lives and is not ready in time is told from one that has stalled:
//
//	server: vllm (pid 4121) was not ready after 5m0s (…); it printed its last line 4m40s ago: it has stalled
//
// Everything that descends from the command belongs to the server, whatever it does. Stop cancels
// this test's requests, sends SIGTERM, waits, kills what is left, judges the exit status, and looks
// for what must be gone:
//
//	server: llama-server did not end well (1.2s)
//	family (after 1s): outlived the command, ended on the signal: process 4130 (sleep 60), setsid, re-parented
//	files (after 1ms): shared memory /dev/shm/psm_3f2a is left; to remove it: rm /dev/shm/psm_3f2a; to accept: server.Allow("/dev/shm/psm_3f2a")
//
// Methods for requests take and return the types of package llm. What a server's protocol lacks is
// an [UnsupportedError] that names the verb or the parameter: nothing is left out or made up.
// docs/servers.md lists which server has which verb.
//
// The environment of the server is the test process's, with TMPDIR set to a folder that only this
// server has and that is removed in the end.
package server
