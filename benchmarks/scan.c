/* The loops of rtdebug/madvise/access.py in C, for benchmarks/madvise_run.py to compare with. */
#include <stddef.h>
#include <stdint.h>

int64_t read_step(const int64_t *words, size_t count, size_t step)
{
	int64_t sum = 0;

	for (size_t i = 0; i < count; i += step)
		sum += words[i];
	return sum;
}

void write_step(int64_t *words, size_t count, size_t step)
{
	for (size_t i = 0; i < count; i += step)
		words[i] = 2;
}

int64_t read_index(const int64_t *words, const int64_t *index, size_t count)
{
	int64_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += words[index[i]];
	return sum;
}

void write_index(int64_t *words, const int64_t *index, size_t count)
{
	for (size_t i = 0; i < count; i++)
		words[index[i]] = 3;
}
