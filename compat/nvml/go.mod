module github.com/enginetest/enginetest/compat/nvml

go 1.26.0

require github.com/enginetest/enginetest v0.0.0

require github.com/ebitengine/purego v0.11.3 // indirect

replace github.com/enginetest/enginetest => ../..
