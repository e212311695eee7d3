// Package leaks rebuilds, in Go, five leaks that cost the authors of inference engines days each,
// and shows the message that package leakcheck gives for them today. Every test plants the bug,
// checks that it is found and named, and runs the fixed twin under the same check:
//
//	go test ./examples/leaks -v
//
//	TestMethodValueInCache    a cache keyed by a bound method keeps the model runner        vllm-project/vllm#38503
//	TestModelStateKeepsModel  the model is dropped, two helpers still point to it           vllm-project/vllm#41297
//	TestBlockHasher           finished requests live on in a closure of the prefix cache    vllm-project/vllm#34183
//	TestErrorKeepsEngine      the error of a failed request keeps the whole engine          vllm-project/vllm#28953
//	TestProcessGroup          the workers' process group is never torn down                 vllm-project/vllm#43023
//	TestRealEngine            the bundled engine: a leak of its handle, and the clean shutdown
package leaks
