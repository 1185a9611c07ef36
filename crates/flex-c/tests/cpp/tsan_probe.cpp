// Compiles and runs where ThreadSanitizer works.
#include <thread>

int main() {
    int value = 0;
    std::thread([&] { value = 1; }).join();
    return value - 1;
}
